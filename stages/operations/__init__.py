"""Commands for a whole run: `run`, and the estimates and checks of a run, its photos and this machine."""

"""Plan: what a run costs before it runs, and what it did cost beside that."""

"""The published tables of the papers, and their reproduction with the results of a run."""

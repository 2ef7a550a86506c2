"""HTML pages for people, such as the report of a run and the comparison of runs: their tables, charts and photos."""

"""The machine, and the estimate of the time, disk and memory that a run needs."""

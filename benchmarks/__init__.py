"""Programs that measure jointspace, each run as `python benchmarks/NAME.py`."""

"""What stands beside the pipeline to be tried, and read."""

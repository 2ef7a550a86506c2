"""Stages that evaluate models, generate captions, and write the report, and the comparison of runs."""

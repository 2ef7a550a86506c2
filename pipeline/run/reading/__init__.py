"""Readers of a run for stages and commands, one module for each kind of data: photos, texts, models, indexes, ..."""

"""What stages and commands read from a run, by noun: photos, texts, models, indexes, and the report."""

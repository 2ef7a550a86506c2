"""Measures of scores and vectors: ranks, recall, their intervals, similarity. Nothing here knows a model."""

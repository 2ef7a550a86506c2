"""Measures of scores and vectors: ranks, recalls and their confidence intervals. No module here imports a model."""

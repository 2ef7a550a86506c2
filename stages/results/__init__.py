"""Evaluation, descriptions, and the report."""

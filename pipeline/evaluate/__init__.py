"""Ranks, recall and their intervals; protocols of evaluation."""

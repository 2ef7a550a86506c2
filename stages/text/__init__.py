"""Sentences and documents become vectors, words and trees."""

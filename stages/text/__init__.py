"""Stages that turn captions and weak texts into vectors, sequences of words, and trees."""

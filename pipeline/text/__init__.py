"""Sentences to terms, a vocabulary of them, and sparse tf-idf vectors (seed 004, section 2.3)."""

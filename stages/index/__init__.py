"""Indexes: built, kept up, searched and served."""

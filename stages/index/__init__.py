"""Bundles: built, kept up, searched and served."""

"""Limits of settings, for configurations and for the cards of indexes."""

MAX_SIDE = 4096
"""Maximum number of pixels of a side of an encoder's input."""

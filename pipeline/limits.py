"""Limits of what people and strangers may ask for, for whoever reads it."""

MAX_SIDE = 4096
"""Pixels of a side of the images that encoders take at most."""

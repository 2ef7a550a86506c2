"""Encoders of images and of texts: their base classes, our own encoders, and the encoders of other libraries."""

"""Encoders of images and of texts: what an encoder is, our own encoders, and the encoders of other libraries."""

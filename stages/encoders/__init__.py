"""Stages of encoders, of images and of texts."""

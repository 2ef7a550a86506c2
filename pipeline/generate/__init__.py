"""Generators, which write captions for images: language models, their decoding, and metrics for generated captions."""

"""Generators, which write captions for images: language models, their decoding, and metrics for generated captions. The
stage `train-generator` trains a generator, and the stage `describe` writes captions with it."""

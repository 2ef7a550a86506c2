"""Generators of descriptions: language models conditioned on images, how they are searched, and what judges them."""

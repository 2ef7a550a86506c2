"""Models: what maps images and sentences into one space."""

"""A collection becomes a manifest."""

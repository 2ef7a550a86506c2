"""Indexes behind HTTP: a JSON API and one page."""

"""Commands that build, change, search, serve and export indexes."""

"""Commands that inspect a collection and read it into the manifest of a run, or draw the demo collection."""

"""The page that a person looks at when a run is done."""

"""Files: atomic, checksummed, sharded. Knows neither torch nor faiss."""

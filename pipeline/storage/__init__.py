"""Reading and writing files: atomic, checksummed and sharded. No module here imports torch or faiss."""

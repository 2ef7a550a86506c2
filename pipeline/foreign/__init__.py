"""Everything that reads files of other people: names, vectors, boxes, and untrusted Parquet files."""

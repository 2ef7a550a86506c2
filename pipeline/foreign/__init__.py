"""Readers of files that other people or programs wrote: lists of names, vectors, boxes, and untrusted Parquet files."""

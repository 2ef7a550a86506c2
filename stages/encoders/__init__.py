"""Stages that prepare image encoders and text encoders, and import precomputed vectors."""

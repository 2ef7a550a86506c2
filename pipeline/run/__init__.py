"""A run: its configuration, its layout, its artefacts; and how a stage is mapped over its shards."""

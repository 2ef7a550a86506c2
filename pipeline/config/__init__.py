"""The configuration's schema. Values and their meaning stand in config/default.yaml, and only there."""

from pipeline.config.loading import default_path, load, validate
from pipeline.config.reading import read_mapping
from pipeline.config.root import Config
from pipeline.settings.section import merge

__all__ = ["Config", "default_path", "load", "merge", "read_mapping", "validate"]

"""Sections of the configuration: the settings that computation takes. Their values stand in config/default.yaml."""

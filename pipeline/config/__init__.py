"""The configuration: its keys with their defaults, the registry of models and encoders, checks, loading.

Importing the registry costs no import of the keys' sections.
"""

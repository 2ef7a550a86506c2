"""The configuration: its keys with their defaults, the registry of models and encoders, and its checks and loading.

The registry can be imported without the sections of keys.
"""

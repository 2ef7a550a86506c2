"""Photographs and sentences into one joint space: computation, and the storage beneath it."""

"""Stages that reproduce the tables of the papers."""

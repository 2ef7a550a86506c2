"""The papers' tables, measured here."""

"""A run as a whole: what it will cost, whether it is sound, and how it was made."""

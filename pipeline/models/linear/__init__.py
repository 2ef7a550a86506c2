"""Linear joint spaces as functions of moments (seed 004, section 3)."""

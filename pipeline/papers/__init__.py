"""The tables that the papers print, and the studies that measure the same here."""

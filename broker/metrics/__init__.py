"""Metrics: their table, how they are written, and the port they are read at."""

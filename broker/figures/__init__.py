"""Reads the figures of a running broker, name server or proxy for its metrics."""

"""A file per family of requests: what is checked in which order, and what is answered."""

"""What pystore/metadata.py stands on: the rows, and the files that they lie in."""

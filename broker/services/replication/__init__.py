"""Replication: the log and what tools make, from a master to its slaves (docs/replication.md)."""

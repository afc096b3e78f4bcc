"""A slave that does a master's duties while there is none (docs/replication.md)."""

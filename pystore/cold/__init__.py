"""The cold tier: messages in an object store, readable without a broker (docs/cold.md)."""

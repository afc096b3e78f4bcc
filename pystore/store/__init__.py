"""An open store, for reading and for writing; its public names stand in pystore itself."""

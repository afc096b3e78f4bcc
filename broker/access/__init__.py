"""Access control: who may do what, decided without I/O."""

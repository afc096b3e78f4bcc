"""What tables of settings are made of, for the store and for every server."""

"""Connections of the remoting protocol: servers, clients, TLS. Knows nothing of topics."""

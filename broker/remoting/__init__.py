"""Commands on the wire: codec, server, client. Knows nothing of messages or topics."""

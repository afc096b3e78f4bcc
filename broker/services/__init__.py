"""What the broker knows and does beside answering: topics, groups, offsets, clients, delays."""

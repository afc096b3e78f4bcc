"""Lite topics (RIP-83): light queues under a topic, one a session, task or agent."""

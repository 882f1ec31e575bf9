"""Saving the state of a server, and restoring it."""

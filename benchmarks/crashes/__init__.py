"""Servers that are killed after they have acknowledged updates, and what is there then."""

"""Servers that are killed with all that they may have to read, and how long they are away."""

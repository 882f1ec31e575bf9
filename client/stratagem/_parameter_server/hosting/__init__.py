"""Keeping variables on servers: creating, reading, writing and training them."""

"""Lookups by a reader and by reader servers, beside Redis."""

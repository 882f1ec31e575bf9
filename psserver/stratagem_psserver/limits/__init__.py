"""Limits of memory: for requests, for variables and for caches."""

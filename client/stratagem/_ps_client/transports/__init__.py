"""The ways by which requests reach a server."""

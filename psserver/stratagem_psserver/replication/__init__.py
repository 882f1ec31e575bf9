"""A primary and its backup, which has all that the primary has acknowledged."""

"""The key-value store of MXNet."""

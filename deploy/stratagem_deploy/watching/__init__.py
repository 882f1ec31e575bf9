"""Watching what the servers of a cluster are doing."""

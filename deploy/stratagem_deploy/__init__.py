"""Clusters of local processes, and the `stratagem` command."""

"""Clusters: their tasks, roles and filters."""

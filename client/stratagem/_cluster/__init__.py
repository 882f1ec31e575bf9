"""Clusters: their tasks, roles, filters and secret."""

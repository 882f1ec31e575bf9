"""Clusters whose tasks are actors of Ray."""

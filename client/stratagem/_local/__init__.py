"""Strategies whose replicas are threads of this process."""

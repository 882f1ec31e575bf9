"""Showing the output of processes."""

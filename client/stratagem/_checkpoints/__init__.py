"""Saving and restoring what a strategy holds."""

"""Saving what a server has, and giving it back."""

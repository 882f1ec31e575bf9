"""Stratagem, below its strategies or through them."""

"""The workers of a coordinator: which belong to it, which are there, and which are sought."""

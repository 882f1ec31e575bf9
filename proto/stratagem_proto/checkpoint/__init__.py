"""Checkpoints of a cluster on disk: what servers write, and everybody can read."""

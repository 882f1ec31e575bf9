"""Checkpoints and snapshots of all servers, as of one moment."""

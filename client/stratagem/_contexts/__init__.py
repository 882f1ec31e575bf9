"""Where a thread stands among replicas, and how it gets there."""

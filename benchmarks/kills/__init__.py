"""Real processes that are killed while others train, and what is lost or applied twice by that."""

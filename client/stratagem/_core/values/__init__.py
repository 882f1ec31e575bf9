"""Values that differ between replicas, and how they are merged."""

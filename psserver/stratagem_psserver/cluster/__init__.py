"""What a server knows of the cluster that its clients are in."""

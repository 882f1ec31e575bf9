"""What is wrong with a cluster, by what its servers say. Pure."""

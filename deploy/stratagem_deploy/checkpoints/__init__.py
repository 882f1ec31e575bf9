"""What can be done with a checkpoint without a cluster."""

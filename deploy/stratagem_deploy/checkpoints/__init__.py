"""Reading, converting and comparing checkpoints without a cluster."""

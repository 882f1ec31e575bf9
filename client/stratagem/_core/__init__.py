"""What every strategy is made of: devices, tensors, variables, contexts and values."""

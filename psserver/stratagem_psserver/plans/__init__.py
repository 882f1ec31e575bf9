"""What was worked out for a training step, kept for those like it."""

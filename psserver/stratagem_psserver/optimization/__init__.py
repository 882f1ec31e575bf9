"""Optimizer steps on hosted variables, and the gradients for them."""

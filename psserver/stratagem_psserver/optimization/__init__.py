"""Optimizer steps on hosted variables, and the gradients that they take."""

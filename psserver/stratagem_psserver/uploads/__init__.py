"""Requests that carry tensors, and the memory in which these arrive."""

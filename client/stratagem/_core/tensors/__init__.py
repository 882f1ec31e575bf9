"""Tensors and nests of them, and what may be done with them."""

"""Gradients on their way to the servers, and the pace of those who send them."""

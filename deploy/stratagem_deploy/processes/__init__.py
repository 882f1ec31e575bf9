"""Processes that this one starts, and what becomes of them."""

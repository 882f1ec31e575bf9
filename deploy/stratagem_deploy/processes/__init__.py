"""Processes that this one starts, supervises and ends."""

"""Scheduled functions with their arguments, and which of them came before."""

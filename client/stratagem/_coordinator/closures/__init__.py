"""Scheduled functions, what they return, and what servers are told of their end."""

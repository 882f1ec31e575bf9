"""Scheduled functions on their way, and what they return."""

"""Requests that wait for what others bring about."""

"""Fuzzing of whatever decodes bytes that others send, guided by coverage."""

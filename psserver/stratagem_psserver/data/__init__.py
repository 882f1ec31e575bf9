"""Ledgers of datasets whose batches are each read once by scheduled functions."""

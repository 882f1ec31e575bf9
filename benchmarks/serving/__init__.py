"""Lookups by a reader and by reader servers, beside Redis."""

from stratagem_psserver.environment import tune

# As `stratagem serve` does, before torch is loaded.
tune()

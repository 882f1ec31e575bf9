"""The log of a server: what changes its state is on disk before anybody hears of it."""

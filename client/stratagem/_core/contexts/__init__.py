"""Which strategy and which replica the running code is in."""

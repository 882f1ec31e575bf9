"""The log of a parameter server as files: its bytes, and reading them."""

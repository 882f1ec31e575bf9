"""Running replica functions, each in its context."""

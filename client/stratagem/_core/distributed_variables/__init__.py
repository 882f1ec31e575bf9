"""Variables with a copy for each replica."""

"""Coming back to the state that a server had before its process ended."""

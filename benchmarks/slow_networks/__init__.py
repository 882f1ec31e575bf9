"""How soon a loss is reached over slow cables."""

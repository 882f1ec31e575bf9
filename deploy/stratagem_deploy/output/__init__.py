"""How what processes write is shown."""

"""Variables, and how they come into being."""

"""Variables, and how they are created."""

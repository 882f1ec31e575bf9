"""The workers of a coordinator: who belongs to it, who is there, and who is sought."""

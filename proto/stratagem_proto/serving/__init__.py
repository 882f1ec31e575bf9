"""What server processes of every kind have in common; no client needs it."""

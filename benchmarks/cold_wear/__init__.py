"""What the disk under a table takes over time."""

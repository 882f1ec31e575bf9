"""How long arbiters take to read and to replace the view of a task."""

"""Who decides which replica of a task is the primary."""

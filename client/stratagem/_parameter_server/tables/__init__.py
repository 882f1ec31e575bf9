"""Parameters of which a process has only the rows that it looks up."""

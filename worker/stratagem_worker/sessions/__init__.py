"""What one client does on a worker, and what the client is told of it."""

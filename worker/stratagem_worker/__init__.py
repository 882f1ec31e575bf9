"""The worker-server process: it runs the functions that its clients send."""

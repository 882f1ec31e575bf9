"""Programs to start from; each is short, and a test runs it."""

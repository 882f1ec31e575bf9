"""What a server may keep in memory: requests on their way, and variables."""

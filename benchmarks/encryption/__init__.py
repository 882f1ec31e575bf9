"""What certificates cost: requests with and without them, side by side."""

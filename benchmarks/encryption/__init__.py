"""What certificates cost: requests by gRPC with and without them, side by side."""

"""How throughput grows with workers and servers, while computing is emulated by waiting."""

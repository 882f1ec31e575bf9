"""Results that stay on the worker."""

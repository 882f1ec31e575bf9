"""What happens to gradients between backward and the variables."""

"""What an operator lets tasks and roles do, beyond what their roles keep from them."""

"""Where the time goes of what is measured."""

"""Moving tasks between parameter servers from the command line."""

"""What all strategies share, and the default one."""

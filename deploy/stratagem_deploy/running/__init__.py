"""`stratagem run`: a script in a cluster of this machine."""

"""Where the processes of a cluster run, so that each can be cut off from the others."""

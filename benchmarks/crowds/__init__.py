"""Many workers on several servers for minutes: whether all of them are served alike."""

"""The `stratagem log` commands, for the logs of servers."""

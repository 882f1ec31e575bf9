"""The server's end of sockets, whose calls have the same handlers as those of gRPC."""

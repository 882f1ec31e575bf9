"""The server's end of sockets, whose calls are answered as gRPC's are."""

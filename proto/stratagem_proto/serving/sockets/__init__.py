"""Calls over sockets, answered as gRPC's are: the server's end."""

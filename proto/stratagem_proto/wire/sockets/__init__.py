"""Frames over sockets, in place of gRPC: on one host, or between hosts."""

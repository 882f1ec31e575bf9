"""Calls over sockets, in place of gRPC's: on one host, or between hosts.

What crosses a socket stands here; the ends of it are in `client` and `server`.
"""

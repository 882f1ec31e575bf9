"""Calls over sockets, in place of gRPC's: on one host, or between hosts.

`frames` and `streams` define the protocol, `client` is one end of it, and `socket_server` the other.
"""

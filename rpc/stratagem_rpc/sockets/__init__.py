"""Calls over sockets, in place of gRPC's: on one host, or between hosts.

`frames` and `streams` define the protocol; its ends are `client` and `socket_server`.
"""

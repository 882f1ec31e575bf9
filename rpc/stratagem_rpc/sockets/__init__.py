"""Calls over sockets, in place of gRPC's: on one host, or between hosts.

The modules here define the protocol; its two ends are in `client` and `server`.
"""

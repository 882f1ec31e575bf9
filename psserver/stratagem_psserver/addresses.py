"""The addresses that a server listens on."""

from __future__ import annotations

import ipaddress

import grpc

from stratagem_proto.errors import UnavailableError


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine can connect to "host:port"."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(server: grpc.Server | grpc.aio.Server, address: str) -> str:
    """Binds a server and returns the address with the port that it got.

    Raises:
        UnavailableError: The port is taken, or the host is not this machine's.
    """
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UnavailableError(
            f"cannot listen on {address}: {error}; stop what listens there or choose "
            "another port (0 takes a free one)"
        ) from error
    return f"{address.rpartition(':')[0]}:{port}"

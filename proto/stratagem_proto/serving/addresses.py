"""The addresses on which servers listen."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import grpc

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.sockets.server.listening import cannot_listen

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import CertificateFolder

LAST_PORT = 65_535


def check_address(address: str) -> None:
    """Check that a text is "host:port" with a port from 0 to 65535, to listen on.

    Raises:
        InvalidArgumentError: It is not.
    """
    if not 0 <= _port_of(address) <= LAST_PORT:
        raise InvalidArgumentError(
            f"{address!r} is not an address to listen on; give host:port with a port from "
            f"0 to {LAST_PORT}, for instance 127.0.0.1:0"
        )


def check_server_address(address: str) -> None:
    """Check that a text is the "host:port" of a server, with a port from 1 to 65535.

    Raises:
        InvalidArgumentError: It is not.
    """
    if not 0 < _port_of(address) <= LAST_PORT:
        raise InvalidArgumentError(
            f"{address!r} is not an address of a server; give HOST:PORT with a port from 1 to "
            f"{LAST_PORT}, as in 127.0.0.1:2222"
        )


def _port_of(address: str) -> int:
    """Return the port of "host:port"; -1 for anything else."""
    host, _, port = address.rpartition(":")
    return int(port) if host and port.isascii() and port.isdigit() else -1


def is_loopback(address: str) -> bool:
    """Return whether only processes of this machine can connect to "host:port"."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(
    server: grpc.Server | grpc.aio.Server,
    address: str,
    certificates: CertificateFolder | None = None,
) -> str:
    """Bind a server, and return its address with the actual port.

    Args:
        server: The server.
        address: The "host:port" to listen on.
        certificates: What the server shows, and by which it knows its clients; None for a port
            that anybody can connect to unencrypted.

    Raises:
        UnavailableError: The port is taken, or the host is not this machine's.
    """
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.of_servers())
    except RuntimeError as error:
        raise cannot_listen(address) from error
    return f"{address.rpartition(':')[0]}:{port}"

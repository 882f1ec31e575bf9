"""The setting of the transports that processes may use."""

from __future__ import annotations

import os

from stratagem_proto.errors import InvalidArgumentError

VARIABLE = "STRATAGEM_TRANSPORT"

AUTO = "auto"
UNIX = "unix"
TCP = "tcp"
GRPC = "grpc"


_MEANINGS = {
    AUTO: "the best that both ends have",
    UNIX: "Unix sockets without shared memory",
    TCP: "TCP sockets",
    GRPC: "gRPC alone",
}
TRANSPORTS = tuple(_MEANINGS)
"""What the setting may be."""


def check_transport(transport: str) -> None:
    """Check that a transport is "auto", "unix", "tcp" or "grpc".

    Raises:
        InvalidArgumentError: It is not.
    """
    if transport not in _MEANINGS:
        known = ", ".join(f"{name!r} for {what}" for name, what in _MEANINGS.items())
        raise InvalidArgumentError(f"{transport!r} is not a transport; give {known}")


def transport_from_environment() -> str:
    """Return the transport that `STRATAGEM_TRANSPORT` names, by default "auto".

    Raises:
        InvalidArgumentError: The variable does not name a transport.
    """
    transport = os.environ.get(VARIABLE, AUTO)
    check_transport(transport)
    return transport

"""The setting that says by which transports processes may talk to each other."""

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


def check_transport(transport: str) -> None:
    """Check that a transport is "auto", "unix", "tcp" or "grpc".

    Raises:
        InvalidArgumentError: It is not.
    """
    if transport not in _MEANINGS:
        known = ", ".join(f"{name!r} for {what}" for name, what in _MEANINGS.items())
        raise InvalidArgumentError(f"{transport!r} is no transport; give {known}")


def transport_from_environment() -> str:
    """Return the transport that `STRATAGEM_TRANSPORT` names; "auto" without it.

    Raises:
        InvalidArgumentError: It names none.
    """
    transport = os.environ.get(VARIABLE, AUTO)
    check_transport(transport)
    return transport

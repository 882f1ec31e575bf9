"""The setting that says by which transports processes may talk to each other."""

from __future__ import annotations

import os

from stratagem_proto.errors import InvalidArgumentError

VARIABLE = "STRATAGEM_TRANSPORT"

AUTO = "auto"
UNIX = "unix"
GRPC = "grpc"


def check_transport(transport: str) -> None:
    """Checks that a transport is "auto", "unix" or "grpc".

    Raises:
        InvalidArgumentError: It is not.
    """
    if transport not in (AUTO, UNIX, GRPC):
        raise InvalidArgumentError(
            f"{transport!r} is no transport; give {AUTO!r} for sockets and shared "
            f"memory where both ends are on one host, {UNIX!r} for sockets without "
            f"shared memory, or {GRPC!r} for gRPC everywhere"
        )


def transport_from_environment() -> str:
    """The transport that `STRATAGEM_TRANSPORT` names; "auto" without it.

    Raises:
        InvalidArgumentError: It names none.
    """
    transport = os.environ.get(VARIABLE, AUTO)
    check_transport(transport)
    return transport

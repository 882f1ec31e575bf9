"""Who has made the call that is being answered.

Calls are answered each in a context of its own, so that whatever answers one need not pass on whose
it is.
"""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from typing import Any

_PRESENT: ContextVar[Any] = ContextVar("stratagem_call", default=None)

# What a host of IPv6 is commonly given to choose its addresses from.
_PREFIX = 64


def arrived(call: object) -> None:
    """Answer a call by gRPC or over a socket from now on."""
    _PRESENT.set(call)


def present_call() -> object:
    """Return the present call, as gRPC or a socket gives it; None if the server itself acts."""
    return _PRESENT.get()


def present_address() -> str:
    """Return where the present call comes from, without a port; "" where nobody knows.

    Of an address of IPv6 it is the network, since a host can use all addresses of its own.
    """
    call = _PRESENT.get()
    return host_of(call.peer()) if hasattr(call, "peer") else ""


def host_of(peer: str) -> str:
    """Return the host of a peer as gRPC names it, for instance "ipv4:10.0.0.1:2222"."""
    scheme, _, address = peer.partition(":")
    if scheme != "ipv6":
        return address.rpartition(":")[0]
    host = address.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{_PREFIX}", strict=False))
    except ValueError:
        return host

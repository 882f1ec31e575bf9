"""Hosts as ports of this machine, each behind a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.chaos.hosts.host import Direction, Host
from benchmarks.stalls.relay import Relay
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_rpc.channel import GRPC, TRANSPORT_VARIABLE


class Proxies:
    """Hosts that are cut off from those who call them, and not from those whom they call.

    Attributes:
        environment: What makes their processes use the port alone that a proxy stands before.
    """

    environment: Mapping[str, str] = {TRANSPORT_VARIABLE: GRPC}

    def __init__(self) -> None:
        self._relays: dict[str, Relay] = {}
        self._closing = ExitStack()

    def add(self, name: str) -> Host:
        """Return one more host."""
        bind = str(self._closing.enter_context(ReservedAddress()))
        relay = self._relays[name] = Relay()
        self._closing.callback(relay.close)
        relay.server = bind
        return Host(name, bind, relay.address)

    def can_cut(self, name: str) -> bool:
        """Return whether a host can be cut off: a coordinator is called by nobody."""
        return not name.startswith("chief")

    def cut(self, name: str, direction: Direction) -> None:
        """Hold back what others send to a host, what it answers, or both."""
        relay = self._relays[name]
        if direction is not Direction.OUT:
            relay.there.clear()
        if direction is not Direction.IN:
            relay.back.clear()

    def heal(self, name: str) -> None:
        """Let everything pass again."""
        self._relays[name].there.set()
        self._relays[name].back.set()

    def close(self) -> None:
        """Remove all of them."""
        self._closing.close()

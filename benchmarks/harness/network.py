"""A network of hosts with addresses of their own."""

from __future__ import annotations

import json
from typing import Protocol

from benchmarks.harness.namespace import Namespace

SUBNET = "10.77.0"


class Joining(Protocol):
    """Whatever has a network of its own."""

    @property
    def network(self) -> str:
        """By what others know its network."""

    def enter(self, *command: str) -> str:
        """Run a command in it, and return what it prints."""


class Network:
    """A switch that hosts are plugged into; nothing of it is on the machine's network.

    Switch and cables belong to a namespace of their own.

    Args:
        rate: What a cable carries each way, as `tc` writes it; None for no limit.

    Attributes:
        place: The namespace, as a file of /proc.
        bridge: The switch, as a device of it.
    """

    bridge = "switch"

    def __init__(self, rate: str | None = None) -> None:
        self._rate = rate
        # From which side of which cables frames are dropped.
        self._lost: set[tuple[str, str]] = set()
        self._switch = Namespace()
        self.place = self._switch.network
        self._switch.enter("ip", "link", "add", self.bridge, "type", "bridge")
        self._switch.enter("ip", "link", "set", self.bridge, "up")

    def join(self, host: Joining, name: str, address: str) -> None:
        """Give a host an address and a cable to the switch."""
        cable = ("type", "veth", "peer", "name", "eth0", "netns", host.network)
        self._switch.enter("ip", "link", "add", name, *cable)
        self._switch.enter("ip", "link", "set", name, "up")
        self.heal(name)
        if self._rate is not None:
            _limit(self._switch, name, self._rate)
        set_up(host, address, self._rate)

    def cut(self, name: str) -> None:
        """Pull a host's cable out of the switch.

        The host is not told: what it sends and what is sent to it is lost.
        """
        self._switch.enter("ip", "link", "set", name, "nomaster")

    def mute(self, name: str) -> None:
        """Lose what a host sends; it still hears others."""
        self._lose("-i", name)

    def deafen(self, name: str) -> None:
        """Lose what is sent to a host; others still hear it."""
        self._lose("-o", name)

    def _lose(self, side: str, name: str) -> None:
        self._drop("-A", side, name)
        self._lost.add((side, name))

    def _drop(self, change: str, side: str, name: str) -> None:
        self._switch.enter("ebtables", change, "FORWARD", side, name, "-j", "DROP")

    def heal(self, name: str) -> None:
        """Put a host's cable back, and lose nothing of it any more."""
        self._switch.enter("ip", "link", "set", name, "master", self.bridge)
        for lost in [each for each in self._lost if each[1] == name]:
            self._drop("-D", *lost)
            self._lost.discard(lost)

    def bytes_to(self, name: str) -> int:
        """Return how much a host has been sent so far."""
        shown = self._switch.enter("ip", "-json", "-stats", "link", "show", name)
        (link,) = json.loads(shown)
        return int(link["stats64"]["tx"]["bytes"])

    def close(self) -> None:
        """Take the switch away, and all cables."""
        self._switch.close()


def addresses(names: list[str]) -> dict[str, str]:
    """Return an address for each host."""
    return {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 1)}


def set_up(host: Joining, address: str, rate: str | None) -> None:
    """Give a host that has a device an address, and a limit of what it sends."""
    host.enter("ip", "address", "add", f"{address}/24", "dev", "eth0")
    host.enter("ip", "link", "set", "eth0", "up")
    if rate is not None:
        _limit(host, "eth0", rate)


def _limit(end: Joining, device: str, rate: str) -> None:
    limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
    end.enter("tc", "qdisc", "add", "dev", device, "root", *limit)

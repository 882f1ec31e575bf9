"""A network of hosts with addresses of their own."""

from __future__ import annotations

import json

from tests.netns.namespace import Namespace

SUBNET = "10.77.0"


class Network:
    """A switch that hosts are plugged into; nothing of it is on the machine's network.

    Switch and cables belong to a namespace of their own.

    Args:
        rate: What a cable carries each way, as `tc` writes it.
    """

    def __init__(self, rate: str) -> None:
        self._rate = rate
        self._switch = Namespace()
        self._switch.enter("ip", "link", "add", "switch", "type", "bridge")
        self._switch.enter("ip", "link", "set", "switch", "up")

    def join(self, host: Namespace, name: str, address: str) -> None:
        """Gives a host an address and a cable to the switch."""
        cable = ("type", "veth", "peer", "name", "eth0", "netns", host.network)
        self._switch.enter("ip", "link", "add", name, *cable)
        self._switch.enter("ip", "link", "set", name, "up")
        self.heal(name)
        host.enter("ip", "address", "add", f"{address}/24", "dev", "eth0")
        host.enter("ip", "link", "set", "eth0", "up")
        for end, device in ((self._switch, name), (host, "eth0")):
            limit = ("tbf", "rate", self._rate, "burst", "64kb", "latency", "100ms")
            end.enter("tc", "qdisc", "add", "dev", device, "root", *limit)

    def cut(self, name: str) -> None:
        """Pulls a host's cable out of the switch.

        The host is not told: what it sends and what is sent to it is lost.
        """
        self._switch.enter("ip", "link", "set", name, "nomaster")

    def mute(self, name: str) -> None:
        """Loses what a host sends; it still hears others."""
        self._lose("-i", name)

    def deafen(self, name: str) -> None:
        """Loses what is sent to a host; others still hear it."""
        self._lose("-o", name)

    def _lose(self, side: str, name: str) -> None:
        self._switch.enter("ebtables", "-A", "FORWARD", side, name, "-j", "DROP")

    def heal(self, name: str) -> None:
        """Puts a host's cable back, and loses nothing any more."""
        self._switch.enter("ip", "link", "set", name, "master", "switch")
        self._switch.enter("ebtables", "-F", "FORWARD")

    def bytes_to(self, name: str) -> int:
        """How much a host has been sent so far."""
        shown = self._switch.enter("ip", "-json", "-stats", "link", "show", name)
        (link,) = json.loads(shown)
        return int(link["stats64"]["tx"]["bytes"])

    def close(self) -> None:
        self._switch.close()


def addresses(names: list[str]) -> dict[str, str]:
    """An address for each host."""
    return {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 1)}

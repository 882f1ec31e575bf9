"""Hosts as network namespaces of Linux, with addresses of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import count

from benchmarks.chaos.hosts.host import Direction, Host
from benchmarks.harness.namespace import Namespace
from benchmarks.harness.network import SUBNET, Network
from stratagem_rpc.channel import TCP, TRANSPORT_VARIABLE

_PORT = 2222
_OWN = "STRATAGEM_CHAOS_NAMESPACE"


def enter_own() -> None:
    """Start this program again in a network of its own, unless it has one.

    So it is one of the hosts, and can ask the others, without a change to the machine's network.
    """
    if os.environ.get(_OWN) != str(os.getpid()):
        os.environ[_OWN] = str(os.getpid())
        program = [sys.executable, *sys.orig_argv[1:]]
        os.execvp("unshare", ["unshare", "--net", *program])


class _Own:
    """The network of this process."""

    network = "/proc/self/ns/net"

    def __init__(self) -> None:
        self.network = f"/proc/{os.getpid()}/ns/net"
        self.enter("ip", "link", "set", "lo", "up")

    def enter(self, *command: str) -> str:
        """Run a command to its end, and return what it prints."""
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Namespaces:
    """Hosts that a switch connects, to which this process is connected as well.

    Attributes:
        environment: What makes their processes use the network alone.
    """

    environment: Mapping[str, str] = {TRANSPORT_VARIABLE: TCP}

    def __init__(self) -> None:
        self._network, self._numbers = Network(), count(1)
        self._hosts: dict[str, Namespace] = {}
        # The rules of the switch are read and written as a whole.
        self._lock = threading.Lock()
        self._network.join(_Own(), "observer", self._next_address())

    def _next_address(self) -> str:
        return f"{SUBNET}.{next(self._numbers)}"

    def add(self, name: str) -> Host:
        """Return one more host."""
        space, address = Namespace(), self._next_address()
        self._hosts[name] = space
        self._network.join(space, name, address)
        place = f"{address}:{_PORT}"
        door = (shutil.which("nsenter") or "nsenter", f"--net={space.network}")
        return Host(name, place, place, door)

    def can_cut(self, name: str) -> bool:
        """Return whether a host can be cut off: each can."""
        return name in self._hosts

    def cut(self, name: str, direction: Direction) -> None:
        """Cut a host off."""
        cuts: Mapping[Direction, Callable[[str], None]] = {
            Direction.IN: self._network.deafen,
            Direction.OUT: self._network.mute,
            Direction.BOTH: self._network.cut,
        }
        with self._lock:
            cuts[direction](name)

    def heal(self, name: str) -> None:
        """Let everything pass again."""
        with self._lock:
            self._network.heal(name)

    def close(self) -> None:
        """Remove all of them, with what still runs there."""
        for space in self._hosts.values():
            space.close()
        self._network.close()

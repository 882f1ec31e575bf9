"""Which server hosts which variable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a variable goes.

    Attributes:
        server: Index of its server in the ps job.
        ordinal: Its place in the order of creation, from 0.
    """

    server: int
    ordinal: int


class RoundRobin:
    """Deals variables to servers in the order of their creation.

    All workers create in the same order and so come to the same places.
    Spec: PS1-5.
    """

    def __init__(self, num_servers: int) -> None:
        self._num_servers = num_servers
        self._dealt = 0
        self._created = 0

    def next(self, colocated: int | None = None) -> Place:
        """Return the place of the next variable.

        Args:
            colocated: Server to which it has to go; it is then nobody's turn.
        """
        ordinal, server = self._created, colocated
        self._created += 1
        if server is None:
            server = self._dealt % self._num_servers
            self._dealt += 1
        return Place(server, ordinal)


def server_device(server: int) -> str:
    """Return the full name of the device that a server keeps variables on."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"

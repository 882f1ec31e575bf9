"""How the servers of a cluster become fewer and more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from stratagem import Servers
from stratagem._ps_client.session import Identity
from stratagem_deploy import LocalCluster
from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR

_STILL_SECONDS = 10.0


class Act(NamedTuple):
    """One change.

    Attributes:
        name: What it is, for people.
        carry_out: Makes it, and returns how many tasks have moved.
    """

    name: str
    carry_out: Callable[[], int]


class Acts:
    """Changes of a cluster of four servers.

    Args:
        cluster: The cluster, whose tasks can move.
        bytes_per_second: The pace of moves; None for as fast as possible.
    """

    def __init__(self, cluster: LocalCluster, bytes_per_second: float | None) -> None:
        resolver = cluster.resolver("worker", 0)
        self._cluster, self._bytes_per_second = cluster, bytes_per_second
        spec = resolver.cluster_spec()
        addresses = [spec.task_address("ps", task) for task in range(spec.num_tasks("ps"))]
        self._servers = Servers(
            lambda: addresses, Identity(ROLE_OPERATOR, token=resolver.cluster_token or "")
        )

    def all(self) -> Iterator[Act]:
        """Leave all, then two servers, without the first one, then four, and then one."""
        yield Act("no move", _nothing)
        for number in (0, 3):
            yield Act(f"drain server {number}", partial(self._drain, number))
        for number in (4, 5):
            address = self._cluster.add_server()
            yield Act(f"add server {number}", partial(self._add, address))
        for number in (1, 2, 4):
            yield Act(f"drain server {number}", partial(self._drain, number))

    def _drain(self, number: int) -> int:
        moved = len(self._servers.drain(number, bytes_per_second=self._bytes_per_second))
        self._cluster.stop("ps", number)
        return moved

    def _add(self, address: str) -> int:
        return len(self._servers.add(address, bytes_per_second=self._bytes_per_second))


def _nothing() -> int:
    time.sleep(_STILL_SECONDS)
    return 0

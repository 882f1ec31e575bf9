"""How far a training of the demo on hosts has come."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.netns.conftest import Cluster
from tests.netns.host import Host
from tests.waiting import eventually

WORKERS = ("worker-0", "worker-1")
STEPS = 1200
"""Of each worker."""

MEGABYTE = 1e6
TRAINED_FOR_A_WHILE = 20 * MEGABYTE


def updates(host: Host, addresses: Sequence[str]) -> set[int]:
    """How often variables of some servers have changed since they were created."""
    shown = host.execute("stratagem", "variables", "--json", *addresses)
    return {variable["version"] - 1 for variable in json.loads(shown)["variables"]}


def grows(cluster: Cluster, name: str, more: float) -> None:
    """Waits until a host has been sent so many bytes more."""
    enough = cluster.network.bytes_to(name) + more
    eventually(lambda: cluster.network.bytes_to(name) > enough, seconds=300, poll=0.1)

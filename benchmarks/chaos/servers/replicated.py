"""Servers with a backup each, whose state is in memory alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from benchmarks.chaos.hosts.host import Host
from benchmarks.chaos.launcher import START_SECONDS, Launcher
from benchmarks.chaos.roles import Role, Victim, victim_of
from benchmarks.chaos.strikes import Kind
from benchmarks.takeovers.replicas import Replicas
from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.clusters.plan import replica_options
from stratagem_deploy.clusters.servers import ReplicatedServer, ServerProcess

_SERVERS = 2
_VERIFY_SECONDS = 2.0


class Pair:
    """One server: two processes, and what they say of themselves.

    Args:
        index: Its task.
        launcher: Starts processes.

    Attributes:
        address: Where its replicas are, as in `TF_CONFIG`.
        processes: The replicas, by their numbers.
        server: Both of them.
        replicas: What they say.
    """

    def __init__(self, index: int, launcher: Launcher) -> None:
        hosts = [launcher.host(f"ps-{index}-{number}") for number in range(2)]
        self.processes = [
            _replica(index, number, host, launcher) for number, host in enumerate(hosts)
        ]
        addresses = [host.address for host in hosts]
        self.address = ",".join(addresses)
        self.server = ReplicatedServer(f"ps:{index}", self.processes, addresses, launcher.token)
        tasks = SimpleClusterResolver(ClusterSpec({"ps": {index: self.address}}))
        tasks.cluster_token = launcher.token
        self.replicas = Replicas(tasks, index)


def _replica(index: int, number: int, host: Host, launcher: Launcher) -> ServerProcess:
    options = (
        *replica_options(2, number, launcher.folder / "arbiter"),
        *("--advertise", host.address),
        *("--verify-seconds", str(_VERIFY_SECONDS)),
    )
    return launcher.process("ps", index, host, options, number)


class ReplicatedServers:
    """Two servers with a backup each.

    Args:
        launcher: Starts processes.
    """

    kinds: Sequence[Kind] = ()

    def __init__(self, launcher: Launcher) -> None:
        self._pairs = [Pair(index, launcher) for index in range(_SERVERS)]
        self.addresses = [pair.address for pair in self._pairs]
        self.servers = [pair.server for pair in self._pairs]
        self.roles: Sequence[Role] = [Replica(self._pairs, place) for place in range(2)]

    @property
    def missing(self) -> list[str]:
        """The names of replicas that do not run."""
        processes = [each for pair in self._pairs for each in pair.processes]
        return [each.name for each in processes if not each.runs]

    def wrong(self) -> list[str]:
        """Return which servers have no backup that is equal to them."""
        found = []
        for index, pair in enumerate(self._pairs):
            try:
                pair.replicas.await_equal()
            except TimeoutError as error:
                found.append(f"ps:{index}: {error}")
        return found

    def versions(self) -> Mapping[str, int]:
        """Return the versions of all variables."""
        found: dict[str, int] = {}
        for pair in self._pairs:
            found |= pair.replicas.versions()
        return found


class Replica:
    """The primary of a server, or the backup.

    A server is hurt only while it has a backup: without a log, two faults at once would cost what
    both had in memory.

    Args:
        pairs: The servers.
        place: 0 for the primary, 1 for the backup.
    """

    def __init__(self, pairs: Sequence[Pair], place: int) -> None:
        self.name = ("primary", "backup")[place]
        self.tasks: Sequence[str] = [f"ps:{index}" for index in range(len(pairs))]
        self._pairs, self._place = pairs, place

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return the replica; None if another one would be missed."""
        index = self.tasks.index(task)
        pair = self._pairs[index]
        both = pair.replicas.complete()
        if not both:
            return None
        number = both[self._place].replication.replica.index

        def revive() -> None:
            pair.server.restart(START_SECONDS)

        return victim_of(pair.processes[number], f"ps-{index}-{number}", revive)

"""A session with all hosts of a strategy, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem._hosting.hosting import hosting_of
from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem._tpu.extended import CoresStrategy
from stratagem._tpu.host import open_meeting_point
from stratagem._tpu.host_group import HostGroup, connected
from stratagem._tpu.kinds import HOST_KINDS
from stratagem._tpu.topology import HostPlan, Topology, cores_here
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import CancelledError, InvalidArgumentError


class HostsSession:
    """A session with all worker servers that are the hosts of a strategy.

    Raises:
        UnavailableError: A host cannot be reached.
        UnauthenticatedError: A host has another cluster token.
        FailedPreconditionError: A host runs other versions of Python or libraries.
        InvalidArgumentError: Hosts have different cores, or fewer than are wanted.
    """

    def __init__(
        self, strategy: CoresStrategy, resolver: ClusterResolver, job: str, num_cores: int | None
    ) -> None:
        self.calls = 0
        self._closure_pickler = HostsPickler(strategy, HOST_KINDS)
        cluster = resolver.cluster_spec()
        tasks = cluster.task_indices(job)
        addresses = {task: cluster.task_address(job, task) for task in tasks}
        found = sorted(addresses.items(), key=_name)
        self._workers = connected(found, job, resolver._secret())
        self._group = HostGroup(self._workers)
        try:
            cores = self._same_cores()
            self.topology = Topology.of(job, tasks, cores, num_cores)
            meeting_point = self._meeting_point(addresses)
        except BaseException:
            self.close()
            raise
        self.plan = HostPlan(
            self.topology, strategy.steps_per_run, cluster.as_dict(), meeting_point
        )

    def _same_cores(self) -> Sequence[str]:
        """Return the cores that each host has."""
        found = self._on_all(cores_here)
        for worker, cores in zip(self._workers, found, strict=True):
            if cores != found[0]:
                raise InvalidArgumentError(
                    f"{worker.name} has the cores {', '.join(cores)}, but {self._workers[0].name} "
                    f"has {', '.join(found[0])}; hosts need equally many of one kind"
                )
        first: Sequence[str] = found[0]
        return first

    def _meeting_point(self, addresses: dict[int, str]) -> str:
        used = self.topology.used_tasks
        if len(used) == 1:
            return ""
        (port,) = self._group.call([self._closure_pickler.dump(open_meeting_point)])
        host = addresses[used[0]].rpartition(":")[0]
        return f"{host}:{port}"

    def _on_all(self, function: Callable[[], Any]) -> list[Any]:
        return self._group.call([self._closure_pickler.dump(function)] * len(self._workers))

    def call(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Have each host that is used do its work, all at the same time; return the results.

        The work is one for each host, or the same for all.
        """
        self._group.release(self._closure_pickler.gone())
        parcels = [self._closure_pickler.dump(work, "what hosts are to do") for work in works]
        used = len(self.topology.used_tasks)
        self.calls += 1
        return self._group.call(parcels * used if len(parcels) == 1 else parcels)

    def ask(self, question: Callable[[], Any]) -> Any:
        """Have the first host alone do something, and return its result."""
        (answer,) = self._group.call([self._closure_pickler.dump(question)])
        return answer

    @property
    def failed(self) -> bool:
        """Whether every later call fails."""
        return self._group.failed

    def fail(self, why: str) -> None:
        """End the session, because the hosts cannot go on together."""
        self._group.fail(why)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return nothing: a copy of a strategy connects for itself."""

    def close(self) -> None:
        """End the session; the hosts forget everything."""
        self._group.close(CancelledError("The session with the hosts has ended"))


def _name(host: tuple[int, str]) -> str:
    return str(host[0])


class HostsPickler(ClosurePickler):
    """Makes parcels for the hosts of a strategy. Thread-safe.

    Variables and parameters are named; their values are sent besides.
    """

    def _write_parameters(self) -> None:
        hosting = hosting_of(self._strategy.extended)
        assert hosting is not None
        hosting.adopter.adopt()

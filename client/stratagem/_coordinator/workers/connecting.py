"""How a coordinator reaches the workers of its cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from stratagem._cluster.tasks import COORDINATOR
from stratagem._coordinator.completion_reporter import CompletionReporter
from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._core.variables import Variable
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.connections.session import Identity
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.traffic import TrafficMeter
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._worker_client.batchers import Batchers
from stratagem._worker_client.link import WorkerLink, task_at
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, Task
from stratagem_proto.wire.channel import Deadlines


class GpuCounts:
    """Lets workers in that have as many GPUs as those before.

    Any worker runs any function, with one replica for each of its GPUs, so that results of workers
    with other numbers would mean something else.

    Spec: PS2-7.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def admit(self, worker: int, count: int) -> None:
        """Take note of how many GPUs a worker has; one that is known was started again.

        Raises:
            InvalidArgumentError: Another one has more or fewer.
        """
        for other, known in self._counts.items():
            if other != worker and known != count:
                raise InvalidArgumentError(
                    f"Mismatched number of GPUs per worker: /job:worker/task:{worker} "
                    f"has {count} and /job:worker/task:{other} has {known}; give the "
                    "strategy num_replicas_per_worker, or all workers as many by "
                    "CUDA_VISIBLE_DEVICES",
                    task=f"/job:worker/task:{worker}",
                )
        self._counts = {**self._counts, worker: count}

    def forget(self, worker: int) -> None:
        """Take note that a worker has left for good."""
        self._counts = {one: n for one, n in self._counts.items() if one != worker}


# Attempts follow each other for as long as it takes.
_ATTEMPT = Deadlines(connect=5.0)


def require_suited(strategy: object) -> None:
    """Check that workers can run functions under a strategy. Spec: COO-1.

    Raises:
        InvalidArgumentError: They cannot.
    """
    if not isinstance(strategy, ParameterServerStrategy):
        raise InvalidArgumentError(
            "Only `ParameterServerStrategy` is supported by ClusterCoordinator, not "
            f"{type(strategy).__name__}; other strategies train in this process"
        )
    extended = strategy.extended
    if not isinstance(extended, ParameterServerExtended):
        raise InvalidArgumentError(
            "Cluster spec must be non-empty: ClusterCoordinator needs a cluster with "
            "parameter servers and workers, but the strategy has none; give it a "
            f"cluster_resolver, or set TF_CONFIG. {COORDINATOR}"
        )
    _require_coordinating(extended)
    consistency = strategy._settings.consistency
    if not consistency._is_free:
        raise InvalidArgumentError(
            "Under a ClusterCoordinator any worker runs any function, so workers "
            f"cannot take steps together, but the strategy's consistency is "
            f'{consistency}; make it with consistency="async"'
        )
    extended.require_may_coordinate()


def _require_coordinating(extended: ParameterServerExtended) -> None:
    member = extended._membership
    if member.task_type != "chief":
        raise InvalidArgumentError(
            f"ClusterCoordinator is for the chief, but this program is {member.name}: "
            "start it by `stratagem run --coordinators 1`, or on several machines as the chief, "
            f"and the workers by `stratagem worker`. {COORDINATOR}",
            task=member.name,
        )
    if not member.cluster.as_dict().get("worker"):
        raise InvalidArgumentError(
            "There must be at least one worker for a ClusterCoordinator, but "
            f"{member.cluster} has none; add the addresses of worker servers. "
            f"{COORDINATOR}"
        )


def take_over(
    strategy: ParameterServerStrategy,
    make_per_worker: Callable[..., Variable],
    end: Callable[[], None],
    is_done: Callable[[], bool],
) -> None:
    """Let a strategy know that its functions run on workers from now on."""
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    extended.coordinate(make_per_worker, end, is_done)


class Connector:
    """Connects to workers for a strategy. It does not keep the strategy alive."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        numbers: count[int],
        meter: TrafficMeter,
        batchers: Batchers,
        outcomes: OutcomeForm,
    ) -> None:
        self._identity = _identity_of(strategy)
        self._note_heard = _servers_of(strategy).note_heard
        self._outcomes = outcomes
        self._numbers = numbers
        self._meter = meter
        self._batchers = batchers
        takes_all_gpus = strategy._settings.num_replicas_per_worker is None
        self._counts = GpuCounts() if takes_all_gpus else None

    def __call__(self, index: int, address: str) -> RemoteWorker:
        """Connect to one; raise as `WorkerLink.connect`, and for its GPUs."""
        task = Task(job="worker", index=index)
        link = WorkerLink(address, task, self._identity, _ATTEMPT)
        link.meter, link.batchers = self._meter, self._batchers
        link.outcomes, link.on_reached = self._outcomes, self._note_heard
        link.connect()
        if self._counts is not None:
            try:
                self._counts.admit(index, link.gpus)
            except InvalidArgumentError:
                link.close()
                raise
        return RemoteWorker(index, link, self._numbers)

    def forget(self, index: int) -> None:
        """Take note that one has left."""
        if self._counts is not None:
            self._counts.forget(index)


def worker_at(address: str, strategy: ParameterServerStrategy) -> int:
    """Return the index of the worker that serves at an address."""
    task = task_at(address, _identity_of(strategy), _ATTEMPT)
    if task.job != "worker":
        raise FailedPreconditionError(
            f"/job:{task.job}/task:{task.index} answers at {address}, and only tasks "
            "of the job worker join a coordinator; start the server with --job worker"
        )
    return task.index


def _identity_of(strategy: ParameterServerStrategy) -> Identity:
    return replace(_servers_of(strategy).identity, role=ROLE_COORDINATOR)


def _servers_of(strategy: ParameterServerStrategy) -> ServerGroup:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended._store.servers


def completion_reporter(
    strategy: ParameterServerStrategy, numbers: count[int]
) -> CompletionReporter:
    """Return what tells a strategy's servers which closures have ended."""
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    space = secrets.token_bytes(SESSION_ID_BYTES)
    return CompletionReporter(extended._store.servers, space, numbers)

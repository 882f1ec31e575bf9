"""The base of clusters that a program starts, whatever their tasks run on."""

from __future__ import annotations

import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from typing_extensions import Self

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.clusters.plan import Plan
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_storage.unclosed import Unclosed, join_last_threads

_GRACE_SECONDS = 2.0
_GLANCE_SECONDS = 0.05


class Worker(Protocol):
    """One worker; it does something only while a call is made on it."""

    def make(self, call: WorkerCall) -> Outcome:
        """Make a call, and return its outcome once it has ended or was ended."""

    def end_call(self, grace: float) -> None:
        """End the call that is being made, if there is one. It may be asked again."""


def no_process(name: str, cluster: str) -> FailedPreconditionError:
    """Return the error of acting on a worker that makes no call."""
    return FailedPreconditionError(
        f"{name} has no process now; it has one while {cluster}.run() waits for its function"
    )


class _Team:
    """Runs one call on each worker at the same time; the first failure ends all."""

    def __init__(self, workers: Sequence[Worker], begin: Callable[[], None]) -> None:
        self._workers = workers
        self._begin = begin
        self._busy = threading.Lock()

    def run(self, calls: Sequence[WorkerCall]) -> list[Any]:
        """Make each call on the worker of its index; return the results."""
        if not self._busy.acquire(blocking=False):
            raise FailedPreconditionError(
                "the workers of this cluster are running a function already; wait for "
                "that run() to return, or make a second cluster"
            )
        try:
            self._begin()
            return self._run(calls)
        finally:
            self._busy.release()

    def _run(self, calls: Sequence[WorkerCall]) -> list[Any]:
        outcomes: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        over = threading.Event()
        results: dict[int, Any] = {}

        def make(index: int, worker: Worker, call: WorkerCall) -> None:
            if over.is_set():
                return
            try:
                outcome = worker.make(call)
            except Exception as error:
                outcome = Outcome(error=error, traceback=traceback.format_exc())
            outcomes.put((index, outcome))

        threads = [
            threading.Thread(target=make, args=(index, *made), daemon=True)
            for index, made in enumerate(zip(self._workers, calls, strict=True))
        ]
        try:
            for thread in threads:
                thread.start()
            while len(results) < len(calls):
                index, outcome = outcomes.get()
                results[index] = outcome.result_of("worker", index)
        finally:
            # Ctrl-C may have come while threads were being started: they find that it is over.
            over.set()
            self._finish(threads)
        return [results[index] for index in range(len(calls))]

    def _finish(self, threads: Sequence[threading.Thread]) -> None:
        """End the calls that are being made, or are just about to be."""
        deadline = time.monotonic() + _GRACE_SECONDS
        working = [one for one in zip(self._workers, threads, strict=True) if one[1].is_alive()]
        while working and time.monotonic() < deadline:
            for worker, _ in working:
                worker.end_call(max(0.0, deadline - time.monotonic()))
            for _, thread in working:
                thread.join(_GLANCE_SECONDS)
            working = [one for one in working if one[1].is_alive()]


class Cluster(ABC):
    """Base of clusters that a `with` block, or `start` and `close`, begin and end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._team: _Team | None = None

    def __repr__(self) -> str:
        name, counts = type(self).__name__, self._plan.counts
        state = "stopped" if self._team is None else "running"
        return f"<{name} {state}: {counts['ps']} ps, {counts['worker']} workers>"

    def __enter__(self) -> Self:
        return self.start() if self._team is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the cluster without a `with` block, for instance in a cell of a notebook.

            cluster = LocalCluster(ps=2, workers=2).start()

        It runs until `close`, at the longest until this program ends.

        Returns:
            The cluster itself.

        Raises:
            FailedPreconditionError: It runs already.
            UnavailableError: A server ended instead of serving.
            DeadlineExceededError: A server needed more time than it was given.
        """
        if self._team is not None:
            raise FailedPreconditionError(
                f"{self!r} was started before; call close() first to start it anew, without what "
                "its servers hold"
            )
        self._team = _Team(self._start(), self._begin_run)
        _unclosed.add(self)
        return self

    def close(self) -> None:
        """End all tasks; what servers held in memory is gone. Again does nothing."""
        if self._team is not None:
            self._team = None
            _unclosed.discard(self)
            self._end()

    @abstractmethod
    def _start(self) -> Sequence[Worker]:
        """Start all servers; return the workers, which start when they are called."""

    def _begin_run(self) -> None:  # noqa: B027 - there may be nothing to do
        """Prepare a run, before the workers start for a function."""

    @abstractmethod
    def _end(self) -> None:
        """End all tasks."""

    @abstractmethod
    def _resolver(self, jobs: Sequence[str], job: str, index: int) -> ClusterResolver:
        """Return the cluster, made of these jobs, as a task sees it."""

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The cluster as a program outside of its workers sees it, being the chief.

        Only there has the cluster a chief: in what `run` does, worker 0 is it.
        """
        self._require_running()
        return self._resolver(("chief", "ps", "worker"), "chief", 0)

    def resolver(self, job: str, index: int) -> ClusterResolver:
        """Return the cluster as the given task sees it.

        There is an "evaluator" 0 besides servers and workers, which `run` leaves to you.

        Raises:
            InvalidArgumentError: There is no such task.
        """
        if (job, index) != ("evaluator", 0):
            self._check(job, index)
        self._require_running()
        return self._resolver(("ps", "worker"), job, index)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `function(resolver, *arguments)` on every worker, at the same time.

        Processes of workers are started for this call and get the function by cloudpickle. When one
        fails, or this call is interrupted by Ctrl-C, the others are ended: threads by an exception,
        which comes once they have returned from what they wait for outside of Stratagem.

        Args:
            function: Called once per worker with the resolver of its task.
            arguments: Further arguments, the same for all.

        Returns:
            What each worker's call returned, by worker index.

        Raises:
            Exception: What the first call that failed raised; its `__cause__` names the worker and
                shows the traceback there.
            AbortedError: A worker's process ended without a result.
            InvalidTypeError: The function, an argument or a result cannot be sent.
            FailedPreconditionError: The cluster does not run, or another `run` does, or it has no
                workers, or these serve a coordinator.
        """
        team = self._require_running()
        if self._plan.worker_servers:
            raise FailedPreconditionError(
                "the workers of this cluster serve a coordinator and make no calls of "
                "run(); make the cluster with workers instead of worker_servers"
            )
        if not self._plan.workers:
            raise FailedPreconditionError(
                "this cluster has no workers that could make calls of run(); make it with workers, "
                "or make the strategy here, with `cluster_resolver`"
            )
        resolvers = [self.resolver("worker", i) for i in range(self._plan.workers)]
        calls = [WorkerCall(function, (resolver, *arguments)) for resolver in resolvers]
        return team.run(calls)

    def _check(self, job: str, index: int) -> None:
        counts = self._plan.counts
        if not 0 <= index < counts.get(job, 0):
            raise InvalidArgumentError(
                f"the cluster has no task {job}:{index}; it has {counts['ps']} "
                f"tasks of ps and {counts['worker']} of worker, from index 0"
            )

    def _require_running(self) -> _Team:
        if self._team is None:
            name = type(self).__name__
            raise FailedPreconditionError(
                f"the cluster does not run; use it inside `with {name}(...) as cluster:`, or "
                "between start() and close()"
            )
        return self._team


def _close(cluster: Cluster) -> None:
    # Checkpoints of its variables may still be written.
    join_last_threads()
    cluster.close()


_unclosed = Unclosed(_close)

"""The actors of Ray, each of which is one task or knows where they are, and their handles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import cloudpickle

from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.clusters.cluster import Worker, no_process
from stratagem_deploy.clusters.plan import Plan
from stratagem_deploy.clusters.servers import RestartableServer
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidTypeError,
    UnavailableError,
)
from stratagem_psserver import environment
from stratagem_rpc.serving.settings import be_insecure


def load() -> Any:
    """Return the module `ray`.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "RayCluster needs Ray, which is not installed: run `pip install 'stratagem[ray]'`"
        ) from error
    return ray


@contextmanager
def connected() -> Iterator[None]:
    """Connect to Ray as `ray.init()` does, unless the program has."""
    ray = load()
    if ray.is_initialized():
        yield
        return
    ray.init()
    try:
        yield
    finally:
        ray.shutdown()


Task = tuple[str, int]
"""Job of a task, and its index in it."""

# A host that never exists (RFC 2606).
_NOWHERE = "not-started.invalid:0"


class Directory:
    """The addresses that tasks publish; an actor.

    Args:
        counts: The number of tasks by job.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._addresses: dict[Task, str] = {}
        self._changed = asyncio.Condition()

    async def publish(self, job: str, index: int, address: str) -> None:
        """Set the address of a task that starts, or start again."""
        async with self._changed:
            self._addresses[job, index] = address
            self._changed.notify_all()

    async def forget(self, job: str) -> None:
        """Drop the addresses of a job, which has ended."""
        for index in range(self._counts[job]):
            self._addresses.pop((job, index), None)

    async def last(self, job: str, index: int) -> str:
        """Return the last address of a task; "" if it has not started before."""
        return self._addresses.get((job, index), "")

    async def addresses(self, jobs: Sequence[str], *, wait: bool) -> Mapping[str, Sequence[str]]:
        """Return the addresses of jobs, by job and index.

        A task that is being started again has its last one until it serves.

        Args:
            jobs: The jobs, of which some may have no tasks.
            wait: Whether to wait until all tasks have started. Otherwise those that have not get
                the address of a host that does not exist.
        """
        tasks = {
            job: [(job, index) for index in range(self._counts[job])]
            for job in jobs
            if self._counts.get(job)
        }
        every = {*chain.from_iterable(tasks.values())}
        async with self._changed:
            await self._changed.wait_for(lambda: not wait or self._addresses.keys() >= every)
        return {job: [self._addresses.get(task, _NOWHERE) for task in tasks[job]] for job in tasks}


class _TaskActor:
    """One task, which publishes its address whenever it starts."""

    def __init__(self, job: str, index: int, directory: str) -> None:
        self._job, self._index = job, index
        # By its name: for a handle, Ray might be unable to start this actor again.
        self._directory = directory
        self._host = str(load().util.get_node_ip_address())
        # As documented, nothing that tasks send is encrypted.
        be_insecure()

    def __repr__(self) -> str:
        # Ray puts it before each line that the process writes.
        return f"{self._job}:{self._index}"

    def _publish(self, address: str) -> None:
        directory = load().get_actor(self._directory)
        load().get(directory.publish.remote(self._job, self._index, address))


class ServerActor(_TaskActor):
    """A parameter server or a worker server."""

    def __init__(self, plan: Plan, job: str, index: int, directory: str) -> None:
        super().__init__(job, index, directory)
        environment.tune()
        self._plan = plan
        last = load().get_actor(directory).last
        free = f"{self._host}:0"
        try:
            # Who knows the last address finds the server there without asking.
            self._server = self._started(str(load().get(last.remote(job, index))) or free)
        except UnavailableError:
            self._server = self._started(free)
        self._publish(self._server.address)

    def _started(self, address: str) -> Any:
        made = self._plan.new_server(self._job, self._index, address, insecure=True)
        made.start()
        return made

    def health_address(self) -> str:
        """Return where it answers health checks, once it serves."""
        return str(self._server.health_address)

    def stop(self, grace: float) -> None:
        """Drain it for at most `grace` seconds."""
        self._server.stop(grace)


class WorkerActor(_TaskActor):
    """A worker that makes one call."""

    def __init__(self, job: str, index: int, directory: str) -> None:
        super().__init__(job, index, directory)
        self._address = ReservedAddress(self._host)
        self._publish(str(self._address))

    def make(self, pickled: bytes) -> bytes:
        """Make a call; return its outcome, pickled too."""
        try:
            call: WorkerCall = cloudpickle.loads(pickled)
        except Exception as error:
            unreadable = InvalidTypeError(
                f"the node cannot read the function or an argument: {error!r}. Install the "
                "program's modules on all nodes, or let Ray send them, for instance by "
                'ray.init(runtime_env={"working_dir": "."}) before the cluster starts'
            )
            return Outcome(error=unreadable).to_bytes()
        return call.outcome().to_bytes()


_EXIT_SECONDS = 1.0


@dataclass(frozen=True)
class Site:
    """Where an actor runs, and what it is told.

    Attributes:
        job: Job of its task.
        index: Index in the job.
        directory: Name of the actor that knows all addresses.
        options: How Ray is to run it.
    """

    job: str
    index: int
    directory: str
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    def start(self, actor: type, *arguments: object) -> Any:
        """Start an actor here; return its handle."""
        given = *arguments, self.job, self.index, self.directory
        return load().remote(actor).options(**self.options).remote(*given)


class RayServer(RestartableServer):
    """A server that Ray starts again whenever its process ends."""

    def __init__(self, site: Site, plan: Plan) -> None:
        """Start nothing yet."""
        self._site, self._plan = site, plan
        self._actor: Any = None
        self._drained: Any = None

    @property
    def runs(self) -> bool:
        return self._actor is not None

    def start(self) -> None:
        if self._actor is None:
            self._actor = self._site.start(ServerActor, self._plan)

    def await_serving(self, timeout: float) -> str:
        ray = load()
        try:
            answer = self._actor.health_address.remote()
            return str(ray.get(answer, timeout=timeout))
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineExceededError(
                f"{self._site} does not serve after {timeout:g} s; give it more by start_timeout"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise UnavailableError(f"{self._site} ended before it served: {error}") from error

    def begin_stop(self) -> None:
        self._drained = self._actor.stop.remote(_EXIT_SECONDS)

    def stop(self, grace: float) -> None:
        if self._actor is not None:
            load().wait([self._drained or self._actor.stop.remote(grace)], timeout=grace)
            load().kill(self._actor)
            self._actor = self._drained = None

    def kill(self) -> None:
        load().kill(self._actor, no_restart=False)


class RayWorker(Worker):
    """A worker whose every call is made by a new actor.

    If that ends meanwhile, Ray starts it again, and the call from its beginning.
    """

    def __init__(self, site: Site) -> None:
        """Start nothing yet."""
        self._site = site
        self._actor: Any = None

    def make(self, call: WorkerCall) -> Outcome:
        ray = load()
        pickled = call.to_bytes()
        actor = self._actor = self._site.start(WorkerActor)
        try:
            outcome: Outcome = cloudpickle.loads(ray.get(actor.make.remote(pickled)))
            return outcome
        except ray.exceptions.RayActorError as error:
            message = f"{self._site} ended without a result: {error}"
            return Outcome(error=AbortedError(message))
        finally:
            self.end_call(0.0)

    def kill(self) -> None:
        """End the process that makes a call, as a crash would.

        Raises:
            FailedPreconditionError: None is being made.
        """
        if self._actor is None:
            raise no_process(str(self._site), "RayCluster")
        load().kill(self._actor, no_restart=False)

    def end_call(self, grace: float) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            load().kill(actor)

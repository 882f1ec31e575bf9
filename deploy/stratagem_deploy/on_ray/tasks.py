"""Servers and workers as actors, the way a cluster handles them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cloudpickle

from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.clusters.plan import Plan
from stratagem_deploy.clusters.servers import RestartableServer
from stratagem_deploy.clusters.workers import Worker, no_process
from stratagem_deploy.on_ray.actors import ServerActor, WorkerActor
from stratagem_deploy.on_ray.library import load
from stratagem_proto.errors import AbortedError, DeadlineExceededError, UnavailableError

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
        told = *arguments, self.job, self.index, self.directory
        return load().remote(actor).options(**self.options).remote(*told)


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

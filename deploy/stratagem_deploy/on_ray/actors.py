"""The actors of Ray, each of which is one task."""

from __future__ import annotations

from typing import Any

import cloudpickle

from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.clusters.plan import Plan
from stratagem_deploy.on_ray.library import load
from stratagem_deploy.processes.addresses import ReservedAddress
from stratagem_proto.errors import InvalidTypeError, UnavailableError
from stratagem_proto.serving.settings import be_insecure
from stratagem_psserver import environment


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

    def _last_address(self) -> str:
        last = self._known_by().last
        return str(load().get(last.remote(self._job, self._index)))

    def _publish(self, address: str) -> None:
        publish = self._known_by().publish
        load().get(publish.remote(self._job, self._index, address))

    def _known_by(self) -> Any:
        return load().get_actor(self._directory)


class ServerActor(_TaskActor):
    """A parameter server or a worker server."""

    def __init__(self, plan: Plan, job: str, index: int, directory: str) -> None:
        super().__init__(job, index, directory)
        environment.tune()
        self._plan = plan
        self._server = self._started(self._last_address() or f"{self._host}:0")
        self._publish(self._server.address)

    def _started(self, address: str) -> Any:
        # Who knows the last address finds the server there without asking.
        try:
            return self._serving(address)
        except UnavailableError:
            return self._serving(f"{self._host}:0")

    def _serving(self, address: str) -> Any:
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
            return Outcome(error=_unreadable(error)).to_bytes()
        return call.outcome().to_bytes()


def _unreadable(error: Exception) -> InvalidTypeError:
    return InvalidTypeError(
        f"the node cannot read the function or an argument: {error!r}. Install the "
        "program's modules on all nodes, or let Ray send them, for instance by "
        'ray.init(runtime_env={"working_dir": "."}) before the cluster starts'
    )

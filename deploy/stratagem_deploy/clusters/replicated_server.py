"""A parameter server with replicas, each of which can end and start by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from stratagem_deploy.clusters.servers import RestartableServer
from stratagem_deploy.clusters.standings import replica_standings
from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from stratagem_proto.v1.replication_pb2 import (
    STANDING_PRIMARY,
    ReplicationStatus,
    Standing,
    View,
)

Which: TypeAlias = int | Literal["primary", "backup"]
"""A replica of a task, by its number or by what it is at present."""

_ASKING_SECONDS = 1.0
_POLL_SECONDS = 0.05


class ReplicatedServer(RestartableServer):
    """The replicas of one task: a primary, and a backup that takes over."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[RestartableServer],
        addresses: Sequence[str],
        token: str,
    ) -> None:
        """Start nothing yet.

        Args:
            name: What messages call the task, for instance "ps:0".
            replicas: Its replicas, in the order of their numbers.
            addresses: Where they listen.
            token: The secret of the cluster.
        """
        self._name, self._replicas = name, replicas
        self._addresses, self._token = addresses, token

    @property
    def runs(self) -> bool:
        return any(replica.runs for replica in self._replicas)

    def replica(self, which: Which) -> RestartableServer:
        """Return one replica.

        Raises:
            InvalidArgumentError: There is no such replica.
            UnavailableError: At present none is what is asked for.
        """
        if isinstance(which, str):
            return self._replicas[self._standing_so(which)]
        if not 0 <= which < len(self._replicas):
            raise InvalidArgumentError(
                f"{self._name} has no replica {which}; it has {len(self._replicas)}, from 0"
            )
        return self._replicas[which]

    def _standing_so(self, which: str) -> int:
        view = self._view()
        if which == "primary" and view.HasField("primary"):
            return view.primary.index
        if which == "backup" and view.HasField("backup"):
            return view.backup.index
        if which not in ("primary", "backup"):
            raise InvalidArgumentError(
                f"{self._name} has no replica {which!r}; name it by its number, or as 'primary' or "
                "'backup'"
            )
        raise UnavailableError(
            f"{self._name} has no {which} at present; {self._trouble()}. Wait until its replicas "
            "have found each other, or name a replica by its number"
        )

    def _view(self) -> View:
        """Return the latest view of a primary; an empty one if none serves."""
        views = [
            found.view
            for found in self._standings()
            if found is not None and found.standing == STANDING_PRIMARY
        ]
        return max(views, key=lambda view: view.epoch, default=View())

    def _standings(self) -> list[ReplicationStatus | None]:
        return replica_standings(self._addresses, self._token, _ASKING_SECONDS)

    def start(self) -> None:
        for replica in self._replicas:
            replica.start()

    def await_serving(self, timeout: float) -> str:
        """Wait until one replica serves and another one is its backup; as for other servers."""
        deadline = time.monotonic() + timeout
        addresses = [replica.await_serving(timeout) for replica in self._replicas]
        while not self._view().HasField("backup"):
            for replica in self._replicas:
                replica.await_serving(timeout)
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"{self._name} has no backup after {timeout:g} s: {self._trouble()}; give it "
                    "more by start_timeout"
                )
            time.sleep(_POLL_SECONDS)
        return addresses[0]

    def _trouble(self) -> str:
        told = (
            f"replica {index} {_described(found)}" for index, found in enumerate(self._standings())
        )
        return "; ".join(told)

    def begin_stop(self) -> None:
        for replica in self._replicas:
            replica.begin_stop()

    def stop(self, grace: float) -> None:
        for replica in self._replicas:
            replica.begin_stop()
        for replica in self._replicas:
            replica.stop(grace)

    def kill(self) -> None:
        for replica in self._replicas:
            replica.kill()

    def restart(self, timeout: float) -> None:
        """Start those replicas again that have ended, and wait until there is a backup.

        Raises:
            FailedPreconditionError: None has ended.
            UnavailableError: One ended instead of serving.
            DeadlineExceededError: There is no backup after `timeout` seconds.
        """
        ended = [replica for replica in self._replicas if not replica.runs]
        if not ended:
            raise FailedPreconditionError(
                f"all replicas of {self._name} run; name the one to start again, by replica="
            )
        self._revive(ended, timeout)

    def restart_replica(self, which: Which, timeout: float) -> None:
        """Stop a replica if it runs, start it again, and wait until there is a backup."""
        replica = self.replica(which)
        replica.stop(timeout)
        self._revive([replica], timeout)

    def _revive(self, replicas: Sequence[RestartableServer], timeout: float) -> None:
        for replica in replicas:
            replica.start()
        self.await_serving(timeout)


def _described(found: ReplicationStatus | None) -> str:
    if found is None:
        return "does not answer"
    word = Standing.Name(found.standing).removeprefix("STANDING_").replace("_", " ").lower()
    return f"is {word}" + (f" ({found.trouble})" if found.trouble else "")


def replicated(
    name: str,
    addresses: Sequence[str],
    token: str,
    new_replica: Callable[[str, int], RestartableServer],
) -> RestartableServer:
    """Return the server of a task, which has as many replicas as addresses.

    Args:
        name: What messages call the task.
        addresses: Where its replicas listen.
        token: The secret of the cluster.
        new_replica: Makes a replica of its address and number.
    """
    replicas = [new_replica(address, number) for number, address in enumerate(addresses)]
    if len(replicas) == 1:
        return replicas[0]
    return ReplicatedServer(name, replicas, addresses, token)

"""The servers of a cluster: in this process, in processes of their own, and with replicas."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import grpc

from stratagem_deploy.processes.fork_server import start_forked
from stratagem_deploy.processes.process import (
    Process,
    Starter,
    Transcript,
    describe_exit,
    import_path,
)
from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY, ReplicationStatus, Standing, View
from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR
from stratagem_rpc.asking import begin_status
from stratagem_rpc.channel import open_channel

if TYPE_CHECKING:
    from stratagem_rpc.serving import server

_EXIT_SECONDS = 1.0


class RestartableServer(ABC):
    """One server that can be stopped and started again at its address.

    A start has two halves, so that several servers can start at the same time, and so has a stop.
    """

    @property
    @abstractmethod
    def runs(self) -> bool:
        """Whether it was started and has not ended."""

    @abstractmethod
    def start(self) -> None:
        """Start it unless it runs."""

    @abstractmethod
    def await_serving(self, timeout: float) -> str:
        """Wait until it answers calls; return the address of its health checks.

        Raises:
            UnavailableError: It ended instead.
            DeadlineExceededError: It needs more than `timeout` seconds.
        """

    @abstractmethod
    def begin_stop(self) -> None:
        """Ask it to drain and stop."""

    @abstractmethod
    def stop(self, grace: float) -> None:
        """Stop it, at the latest after about `grace` seconds."""

    @abstractmethod
    def kill(self) -> None:
        """Stop it without any grace."""

    def restart(self, timeout: float) -> None:
        """Stop it if it runs, and start it at the same address."""
        self.stop(timeout)
        self.start()
        self.await_serving(timeout)


class ServerThread(RestartableServer):
    """A server in this process, on its event-loop thread."""

    def __init__(self, make: Callable[[], server.RpcServer]) -> None:
        """Start nothing yet; `make` makes the server, again whenever it is to start."""
        self._make = make
        self._server: server.RpcServer | None = None

    @property
    def runs(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        if self._server is None:
            made = self._make()
            made.start()
            self._server = made

    def await_serving(self, timeout: float) -> str:
        return self._server.health_address if self._server else ""

    def begin_stop(self) -> None:
        if self._server:
            self._server.announce_stop()

    def stop(self, grace: float) -> None:
        running, self._server = self._server, None
        if running:
            running.stop(grace)

    def kill(self) -> None:
        self.stop(grace=0)


@contextmanager
def serving(servers: Sequence[RestartableServer], timeout: float) -> Iterator[None]:
    """Start servers together, and stop them together at the end of the block.

    What is appended to them meanwhile is stopped with them.

    Raises:
        UnavailableError: A server ended instead of serving.
        DeadlineExceededError: One needs more than `timeout` seconds.
    """
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.await_serving(timeout)
        yield
    finally:
        with ExitStack() as stops:
            for server in servers:
                stops.callback(server.stop, _EXIT_SECONDS)
            for server in servers:
                if server.runs:
                    stops.callback(server.begin_stop)


_READY_POLL_SECONDS = 0.02

# What sets `rejoin_seconds` of parameter servers, unless they get an option that does.
_REJOIN = "STRATAGEM_REJOIN_SECONDS"

# Others wait for the processes to start again that this machine can start meanwhile.
_REJOIN_SECONDS = 300.0

_PROGRAMS = {"ps": "stratagem_psserver.__main__", "worker": "stratagem_worker.__main__"}


def patience_for_restarts() -> Mapping[str, str]:
    """Return an environment in which parameter servers expect lost workers to be started again.

    Workers that step together then wait for them. What our environment says counts.
    """
    return {_REJOIN: os.environ.get(_REJOIN, str(_REJOIN_SECONDS))}


@dataclass(frozen=True)
class ServerCommand:
    """The command line of a server's process.

    Attributes:
        job: "ps" or "worker".
        task: Index within the job.
        address: Where it serves.
        token_file: File with the cluster's secret.
        options: More options of `stratagem ps` or `stratagem worker`.
        environment: What it finds in its environment, besides what we found in ours.
        replica: Its number among the replicas of the task; None if it is the only one.
    """

    job: str
    task: int
    address: str
    token_file: Path
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    replica: int | None = None

    @property
    def name(self) -> str:
        task = f"{self.job}:{self.task}"
        return task if self.replica is None else f"{task} replica {self.replica}"

    def line(self, ready_file: Path) -> list[str]:
        return [
            *(sys.executable, "-m", _PROGRAMS[self.job]),
            *("--bind", self.address),
            *("--task", str(self.task)),
            *("--token-file", str(self.token_file)),
            *("--ready-file", str(ready_file)),
            *self.options,
        ]


class ServerProcess(RestartableServer):
    """A server in a process of its own."""

    def __init__(
        self,
        command: ServerCommand,
        *,
        show: Callable[[str], None] | None = None,
        on_end: Callable[[Process], None] | None = None,
        start: Starter = start_forked,
    ) -> None:
        """Start nothing yet.

        `show` is called with every line of its log, and `on_end` from another thread whenever its
        process has ended.
        """
        self._command = command
        self._ready_file = command.token_file.with_name(f"{command.name}.ready".replace(" ", "-"))
        self._show = show
        self._on_end = on_end
        self._start = start
        self.process: Process | None = None

    @property
    def name(self) -> str:
        """The name of its process."""
        return self._command.name

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.exit_code is None

    def start(self) -> None:
        if self.runs:
            return
        self._ready_file.unlink(missing_ok=True)
        self.process = Process(
            self._command.name,
            self._command.line(self._ready_file),
            environment={**import_path(), **self._command.environment},
            output=Transcript(self._show),
            on_end=self._on_end,
            start=self._start,
        )

    def await_serving(self, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        where, process = f"{self.name} at {self._command.address}", self.process
        while not self._ready_file.exists():
            tail, code = ("", 0) if process is None else (process.tail(), process.exit_code)
            if code is not None:
                raise UnavailableError(
                    f"{where} ended with {describe_exit(code)} before it served; "
                    f"the end of its log:\n{tail}"
                )
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"{where} does not serve after {timeout:g} s; give it more "
                    f"by start_timeout\n{tail}"
                )
            time.sleep(_READY_POLL_SECONDS)
        facts = json.loads(self._ready_file.read_text(encoding="utf-8"))
        return str(facts["health_address"])

    def begin_stop(self) -> None:
        if self.process:
            self.process.send(signal.SIGTERM)

    def stop(self, grace: float) -> None:
        if self.process:
            self.process.end(grace)

    def kill(self) -> None:
        if self.process:
            self.process.send(signal.SIGKILL)
            self.process.wait()


def replica_standings(
    addresses: Sequence[str], token: str, seconds: float
) -> list[ReplicationStatus | None]:
    """Ask replicas what they are; None for each that does not answer within some seconds."""
    standings: list[ReplicationStatus | None] = []
    with ExitStack() as channels:
        calls = [
            begin_status(channels.enter_context(open_channel(address)), token, seconds)
            for address in addresses
        ]
        for call in calls:
            try:
                standings.append(call.result().parameter_server.replication)
            except grpc.RpcError:
                standings.append(None)
    return standings


_ASKING_SECONDS = 1.0
_POLL_SECONDS = 0.05


def places_of_tasks(
    addresses: Sequence[str], tasks: int, token: str, timeout: float
) -> Sequence[str]:
    """Return where the tasks of servers that share them are, once all are served.

    Args:
        addresses: The servers.
        tasks: How many tasks there are.
        token: The secret of the cluster.
        timeout: The longest wait, in seconds.

    Raises:
        DeadlineExceededError: One is not served by then.
    """
    # These load PyTorch, for which runs whose tasks stay do not wait.
    from stratagem._ps_client.session import Identity
    from stratagem._ps_client.survey import ServerCalls

    calls, deadline = ServerCalls(Identity(ROLE_OPERATOR, token=token)), time.monotonic() + timeout
    while True:
        views: dict[int, View] = {}
        for answer in calls.locate(addresses).values():
            views.update({} if isinstance(answer, StratagemError) else answer)
        found = {task: views[task].primary.address for task in range(tasks) if task in views}
        known = {task: address for task, address in found.items() if address}
        # An address may be of an earlier process, and another one may have it by now.
        said = replica_standings([*known.values()], token, _ASKING_SECONDS)
        served = [
            task
            for task, one in zip(known, said, strict=True)
            if one and one.standing == STANDING_PRIMARY and one.view == views[task]
        ]
        if len(served) == tasks:
            return [known[task] for task in range(tasks)]
        if time.monotonic() > deadline:
            missing = sorted({*range(tasks)} - {*served})
            raise DeadlineExceededError(
                f"nobody serves /job:ps/task:{missing[0]} after {timeout:g} s, of {tasks} tasks "
                f"{len(missing)}; look at the logs of the servers (--verbose)"
            )
        time.sleep(_POLL_SECONDS)


Which: TypeAlias = int | Literal["primary", "backup"]
"""A replica of a task, by its number or by what it is at present."""


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

        Replicas and their addresses are in the order of their numbers.
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
            return self._replicas[self._number_of(which)]
        if not 0 <= which < len(self._replicas):
            raise InvalidArgumentError(
                f"{self._name} has no replica {which}; it has {len(self._replicas)}, from 0"
            )
        return self._replicas[which]

    def _number_of(self, which: str) -> int:
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
        words = []
        for index, found in enumerate(self._standings()):
            if found is None:
                words.append(f"replica {index} does not answer")
                continue
            word = Standing.Name(found.standing).removeprefix("STANDING_").replace("_", " ").lower()
            trouble = f" ({found.trouble})" if found.trouble else ""
            words.append(f"replica {index} is {word}{trouble}")
        return "; ".join(words)

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
        for replica in ended:
            replica.start()
        self.await_serving(timeout)

    def restart_replica(self, which: Which, timeout: float) -> None:
        """Stop a replica if it runs, start it again, and wait until there is a backup."""
        replica = self.replica(which)
        replica.stop(timeout)
        replica.start()
        self.await_serving(timeout)


def replicated(
    name: str,
    addresses: Sequence[str],
    token: str,
    new_replica: Callable[[str, int], RestartableServer],
) -> RestartableServer:
    """Return the server of a task, which has as many replicas as addresses.

    `new_replica` makes a replica of its address and number.
    """
    replicas = [new_replica(address, number) for number, address in enumerate(addresses)]
    if len(replicas) == 1:
        return replicas[0]
    return ReplicatedServer(name, replicas, addresses, token)

"""A server with a folder, and programs that add to it, read, and remember what they were told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

import stratagem
from stratagem import ClusterSpec, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    SessionLostError,
    StratagemError,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient

NAME = "counted"


class LoggedServer:
    """One server with a log, which ends and comes back at one address.

    Args:
        root: An empty folder.
        stack: Ends it.
        others: Further settings.

    Attributes:
        folder: Where its state is now.
    """

    def __init__(self, root: Path, stack: ExitStack, **others: Any) -> None:
        self._root, self._copies = root, 0
        self._others = {"durability": "log", "reconnect_seconds": 0.4, **others}
        self.address = str(stack.enter_context(ReservedAddress()))
        self.folder = root / "state"
        self.folder.mkdir()
        stack.callback(lambda: self._running.stop(grace=0))
        self.start()

    @property
    def state(self) -> Path:
        """What its task has there."""
        return self.folder / "ps-0"

    def start(self) -> None:
        """Begins, with what there is."""
        settings = ServerSettings(
            bind=self.address,
            token=TOKEN,
            durability_folder=str(self.folder),
            **self._others,
        )
        self._running = ParameterServer(settings)
        self._running.start()

    def copied(self) -> Path:
        """A copy of its folder as it is at one moment."""
        self._copies += 1
        copy = self._root / f"copy-{self._copies}"
        content = _content(self.folder)
        while (again := _content(self.folder)) != content:
            content = again
        for name, data in content.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(data)
        return copy

    @property
    def addresses(self) -> Sequence[str]:
        """Where all servers of the cluster are."""
        return [self.address]

    def stop(self) -> None:
        """Ends in order."""
        self._running.stop(grace=0)

    def kill(self) -> None:
        """Ends; what is left is what the disk has now."""
        left = self.copied()
        self._running.stop(grace=0)
        self.folder = left

    @property
    def has_variable(self) -> bool:
        """Whether it has the variable."""
        with RawClient(self.address, TOKEN) as client:
            client.open()
            return NAME in client.listing()

    def look(self) -> int:
        """How often was added to the variable, by the word of somebody who knows nothing."""
        if not self.has_variable:
            return 0
        with RawClient(self.address, TOKEN) as client:
            client.open()
            return int(client.read(NAME)[0])

    def add(self, times: int) -> None:
        """Adds to the variable as somebody who knows nothing."""
        with RawClient(self.address, TOKEN) as client:
            client.open()
            for _ in range(times):
                client.assign(NAME, client.read(NAME)[0] + 1)


def _content(folder: Path) -> dict[str, bytes]:
    """All files of a folder; it never is the same while an image replaces another one."""
    try:
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if not path.is_dir()
        }
    except FileNotFoundError:
        return {"vanished": os.urandom(8)}


class Servers(Protocol):
    """What a program has to know of the servers of its cluster."""

    @property
    def addresses(self) -> Sequence[str]: ...


class At:
    """Servers at these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] = addresses


class Program:
    """A program that adds 1 again and again, or only reads.

    Attributes:
        known: The most that it was told of.
    """

    known = 0

    def __init__(
        self, servers: Servers, stack: ExitStack, job: str = "worker", **settings: Any
    ) -> None:
        worker = self._worker(stack) if job == "chief" else "worker.test:1"
        spec = {"ps": [*servers.addresses], "worker": [worker]}
        if job != "worker":
            spec[job] = [f"{job}.test:1"]
        resolver = SimpleClusterResolver(ClusterSpec(spec), task_type=job, task_id=0)
        strategy = ParameterServerStrategy(
            resolver, token=TOKEN, peer_seconds=20, connect_seconds=20, **settings
        )
        self._adds = job != "evaluator"
        self.strategy = stack.enter_context(strategy)
        with self.strategy.scope():
            self.prepare()

    def _worker(self, stack: ExitStack) -> str:
        return stack.enter_context(WorkerServer(WorkerSettings(token=TOKEN))).address

    def prepare(self) -> None:
        """Make what it needs, in the scope of its strategy."""
        self.variable = Variable(torch.zeros(()), name=NAME)

    @property
    def acts(self) -> Sequence[Callable[[], None]]:
        """What it goes on with."""
        return (self.read, self.add, self.read) if self._adds else (self.read, self.read)

    def add(self) -> None:
        """Add 1."""
        self.variable.assign_add(1.0)
        self.known += 1

    def read(self) -> None:
        """Read the sum."""
        self.known = max(self.known, self._value())

    def _value(self) -> int:
        return int(self.variable.numpy())


class Training(Program):
    """Steps of an optimizer add 1."""

    def prepare(self) -> None:
        self._module = torch.nn.Module()
        self._module.counted = torch.nn.Parameter(torch.zeros(()))
        self._parameter = self._module.counted
        if self._adds:
            sgd = torch.optim.SGD([self._parameter], lr=1.0)
            self._optimizer = stratagem.DistributedOptimizer(sgd)

    def _step(self) -> None:
        self._optimizer.zero_grad()
        self._parameter.neg().backward()
        self._optimizer.step()

    def _value(self) -> int:
        self.strategy.refresh()
        return int(self._parameter)

    def add(self) -> None:
        self.strategy.run(self._step)
        self.known += 1


class Coordinating(Program):
    """Functions on a worker add 1."""

    def prepare(self) -> None:
        super().prepare()
        if self._adds:
            self._coordinator = ClusterCoordinator(self.strategy)

    def add(self) -> None:
        variable = self.variable

        def function() -> None:
            variable.assign_add(1.0)

        self._coordinator.schedule(function)
        self._coordinator.join()
        self.known += 1


def bounded() -> Any:
    return stratagem.consistency.Bounded(1)


Start = Callable[[LoggedServer, ExitStack], Program]

PROGRAMS: Mapping[str, Start] = {
    "async": lambda server, stack: Program(server, stack, consistency="async"),
    "async steps": lambda server, stack: Training(server, stack, consistency="async"),
    "bounded": lambda server, stack: Training(server, stack, consistency=bounded()),
    "sync": lambda server, stack: Training(server, stack, consistency="sync"),
    "coordinator": lambda server, stack: Coordinating(server, stack, job="chief"),
}


def reader(server: LoggedServer, stack: ExitStack, of: Program) -> Program:
    """A program that only reads what another one adds."""
    return type(of)(server, stack, job="evaluator")


def refuses_to_start(server: LoggedServer) -> bool:
    """Whether the server itself finds that something is lost."""
    try:
        server.start()
    except (DataLossError, FailedPreconditionError):
        return True
    return False


def faults_of(program: Program, there: int) -> Iterator[str]:
    """What a program is not told although it should be.

    Args:
        program: The program.
        there: What the server had when it started.
    """
    known, lost = program.known, program.known > there
    for act in program.acts:
        try:
            act()
        except StratagemError as error:
            if not isinstance(error, SessionLostError) and not _is_of_lost(error):
                yield f"{act.__name__} raises {error!r}"
            continue
        if lost:
            yield f"{act.__name__} succeeds: {known} were known, and {there} were left"


def _is_of_lost(error: BaseException) -> bool:
    """Whether it says of a function on a worker that it met a server which has lost something."""
    return "has lost changes" in str(error)

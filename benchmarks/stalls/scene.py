"""A cluster that trains until something holds it up."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.stalls.relay import Relay
from benchmarks.stalls.training import Link, train
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, ask

SERVERS = WORKERS = 2

# Five processes load PyTorch, on a machine that may be busy.
_START_SECONDS = 240.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.02
# So many show that training goes on.
_MORE_STEPS = 10
# As an operator would type: shorter than the default, since a stopped server answers nothing.
_ASK_SECONDS = 1.0


@dataclass(frozen=True)
class Scene:
    """Where a cluster is to be held up, and by chance where in it.

    Attributes:
        folder: For its files: those that exist tell its processes what to do.
        chance: Draws victims.
    """

    folder: Path
    chance: random.Random

    def victim(self) -> int:
        """Return the index of the task that is to blame."""
        return self.chance.randrange(WORKERS)

    def steps(self) -> int:
        """Return how many steps, or functions, have ended."""
        return sum(map(_number, self.folder.glob("steps-*")))

    def await_steps(self) -> None:
        """Wait until training goes on.

        Raises:
            TimeoutError: It does not.
        """
        enough = self.steps() + _MORE_STEPS
        until(lambda: self.steps() >= enough, "nothing is trained")

    def pid(self, task: str) -> int:
        """Return the process of a program, once it has written it down."""
        file = self.folder / f"{task}.pid"
        until(file.exists, f"{task} does not run")
        return _number(file)


def _number(file: Path) -> int:
    # A file that is being written may be empty.
    return int(file.read_text() or 0)


def until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: It does not, with these words.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} for {_START_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class Watched:
    """A cluster as `stratagem doctor` finds it.

    Attributes:
        places: Its servers.
        token: Its secret.
    """

    places: Sequence[ServerPlace]
    token: str

    @classmethod
    def of(cls, resolver: ClusterResolver, *jobs: str) -> Watched:
        """Return the servers of these jobs."""
        spec = resolver.cluster_spec()
        places = [
            ServerPlace(spec.task_address(job, index), f"{job}:{index}", optional=job != "ps")
            for job in jobs
            for index in spec.task_indices(job)
        ]
        return cls(places, resolver.cluster_token or "")

    def ask(self) -> list[ServerAnswer]:
        """Return what its servers say."""
        return ask(self.places, self.token, _ASK_SECONDS)

    def pids(self) -> Mapping[str, int]:
        """Return the processes of its servers."""
        return {each.label: each.status.pid for each in self.ask() if each.status}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend a process while the body runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def training(
    scene: Scene,
    relays: Mapping[Link, Relay] = MappingProxyType({}),
    absent: int | None = None,
    sizes: Sequence[int] = (64,) * SERVERS,
    begins: bool = True,
) -> Iterator[Watched]:
    """Let workers train in synchronous steps while the body runs.

    Args:
        scene: Where.
        relays: What passes the bytes of some links.
        absent: A worker that does not come.
        sizes: The number of elements of each server's variable.
        begins: Whether the first steps are to be taken before the body runs.
    """
    places = {link: relay.address for link, relay in relays.items()}
    durable = scene.folder / "log"
    durable.mkdir()
    with LocalCluster(
        SERVERS, WORKERS, processes=True, durability="log", durability_folder=durable
    ) as cluster:
        watched = Watched.of(cluster.cluster_resolver, "ps")
        for (_, server), relay in relays.items():
            relay.server = watched.places[server].address
        arguments = cluster, scene.folder, places, absent, sizes
        thread = threading.Thread(target=_run, args=arguments, daemon=True)
        thread.start()
        try:
            for index in range(WORKERS):
                scene.pid(f"worker:{index}")
            if begins:
                scene.await_steps()
            yield watched
        finally:
            for index in range(WORKERS):
                with suppress(Exception):
                    cluster.kill("worker", index)
            thread.join(_END_SECONDS)


def _run(cluster: LocalCluster, *arguments: object) -> None:
    # Its workers are killed at the end.
    with suppress(Exception):
        cluster.run(train, *arguments)

"""The ways in which a cluster is held up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.harness import coordinators
from benchmarks.stalls import coordinating
from benchmarks.stalls.relay import Relay
from benchmarks.stalls.scene import (
    SERVERS,
    WORKERS,
    Scene,
    Watched,
    stopped,
    training,
    until,
)
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import Process
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_rpc.channel import TRANSPORT_VARIABLE

# Elements of a variable.
_SMALL, _LARGE = 64, 1 << 20


class Stall(NamedTuple):
    """A cluster that stands still.

    Attributes:
        watched: The cluster.
        culprits: The tasks that are to blame.
    """

    watched: Watched
    culprits: set[str]


Kind: TypeAlias = Callable[[Scene], AbstractContextManager[Stall]]
"""Holds a cluster up while the body runs."""


@contextmanager
def stopped_server(scene: Scene) -> Iterator[Stall]:
    """SIGSTOP of a parameter server."""
    with training(scene) as watched:
        name = f"ps:{scene.victim()}"
        with stopped(watched.pids()[name]):
            yield Stall(watched, {name})


@contextmanager
def stopped_worker(scene: Scene) -> Iterator[Stall]:
    """SIGSTOP of a worker."""
    with training(scene) as watched:
        name = f"worker:{scene.victim()}"
        with stopped(scene.pid(name)):
            yield Stall(watched, {name})


@contextmanager
def stopped_worker_server(scene: Scene) -> Iterator[Stall]:
    """SIGSTOP of a worker that serves a coordinator."""
    with _coordinating(scene) as (watched, _):
        name = f"worker:{scene.victim()}"
        with stopped(watched.pids()[name]):
            yield Stall(watched, {name})


@contextmanager
def stopped_coordinator(scene: Scene) -> Iterator[Stall]:
    """SIGSTOP of a coordinator."""
    with _coordinating(scene) as (watched, coordinator), stopped(coordinator.pid):
        yield Stall(watched, {"chief:0"})


@contextmanager
def killed_coordinator(scene: Scene) -> Iterator[Stall]:
    """SIGKILL of a coordinator that nobody starts again."""
    with _coordinating(scene) as (watched, coordinator):
        coordinator.send(signal.SIGKILL)
        yield Stall(watched, {"chief:0"})


@contextmanager
def endless_function(scene: Scene) -> Iterator[Stall]:
    """A function that never ends, on a worker that serves a coordinator."""
    with _coordinating(scene) as (watched, _):
        names = {pid: name for name, pid in watched.pids().items()}
        (scene.folder / "hang").touch()
        hanging: list[Path] = []

        def hangs() -> bool:
            hanging[:] = scene.folder.glob("hanging-*")
            return bool(hanging)

        until(hangs, "no function hangs")
        yield Stall(watched, {names[int(hanging[0].name.removeprefix("hanging-"))]})


@contextmanager
def held_lock(scene: Scene) -> Iterator[Stall]:
    """A lock of the user's own program that a worker waits for."""
    with _told(scene, "lock") as stall:
        yield stall


@contextmanager
def blocking_iterator(scene: Scene) -> Iterator[Stall]:
    """An iterator over a worker's data that blocks."""
    with _told(scene, "block") as stall:
        yield stall


@contextmanager
def _told(scene: Scene, what: str) -> Iterator[Stall]:
    """Tell a worker that trains what to do."""
    with training(scene) as watched:
        victim = scene.victim()
        (scene.folder / f"{what}-{victim}").touch()
        yield Stall(watched, {f"worker:{victim}"})


@contextmanager
def missing_worker(scene: Scene) -> Iterator[Stall]:
    """A worker that was never started."""
    victim = scene.victim()
    with training(scene, absent=victim, begins=False) as watched:
        until(partial(_any, watched, _has_clients), "no worker comes")
        yield Stall(watched, {f"worker:{victim}"})


@contextmanager
def cut_to_server(scene: Scene) -> Iterator[Stall]:
    """A link that passes nothing from a worker to a server."""
    with _linked(scene) as (stall, relay), relay.cut(relay.there):
        yield stall


@contextmanager
def cut_to_worker(scene: Scene) -> Iterator[Stall]:
    """A link that passes nothing from a server to a worker."""
    with _linked(scene) as (stall, relay), relay.cut(relay.back):
        yield stall


@contextmanager
def _linked(scene: Scene) -> Iterator[tuple[Stall, Relay]]:
    """Let workers train, one of whom meets a server over a relay."""
    worker, server = scene.victim(), scene.victim()
    with (
        _environment({TRANSPORT_VARIABLE: "grpc"}),
        closing(Relay()) as relay,
        training(scene, {(worker, server): relay}) as watched,
    ):
        yield Stall(watched, {f"worker:{worker}", f"ps:{server}"}), relay


@contextmanager
def slow_disk(scene: Scene) -> Iterator[Stall]:
    """A disk that does not come back from writing a server's log."""
    folder = Path(__file__).parent / "slow_disk"
    with (
        _environment({"STALLS_FOLDER": str(scene.folder)}),
        _first_in_path(folder),
        training(scene) as watched,
    ):
        victim = scene.victim()
        slow = scene.folder / f"slow-{victim}"
        slow.touch()
        try:
            yield Stall(watched, {f"ps:{victim}"})
        finally:
            slow.unlink()


@contextmanager
def full_budget(scene: Scene) -> Iterator[Stall]:
    """A server whose memory for requests is too small for a step."""
    victim = scene.victim()
    sizes = [_LARGE if server == victim else _SMALL for server in range(SERVERS)]
    with (
        _environment({"STRATAGEM_STAGED_BYTES": str(int(1.5 * 4 * _LARGE))}),
        training(scene, sizes=sizes, begins=False) as watched,
    ):
        until(partial(_any, watched, _has_refused), "nothing is refused")
        yield Stall(watched, {f"ps:{victim}"})


def _any(watched: Watched, holds: Callable[[GetStatusResponse], bool]) -> bool:
    """Return whether something holds for any server."""
    return any(holds(answer.status) for answer in watched.ask() if answer.status)


def _has_clients(status: GetStatusResponse) -> bool:
    return bool(status.sessions)


def _has_refused(status: GetStatusResponse) -> bool:
    return status.parameter_server.staged.HasField("refused")


@contextmanager
def _coordinating(scene: Scene) -> Iterator[tuple[Watched, Process]]:
    """Let a coordinator schedule functions while the body runs."""
    with LocalCluster(SERVERS, worker_servers=WORKERS, processes=True) as cluster:
        resolver = cluster.cluster_resolver
        module = coordinating.__name__
        coordinator = coordinators.started(module, scene.folder, resolver)
        try:
            scene.await_steps()
            yield Watched.of(resolver, "ps", "worker"), coordinator
        finally:
            coordinator.send(signal.SIGKILL)
            coordinator.wait()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set what processes find in their environment that the body starts."""
    earlier = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in earlier.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _first_in_path(folder: Path) -> Iterator[None]:
    """Let the body's processes look for modules in a folder first."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


KINDS: Mapping[str, Kind] = {
    "stopped server": stopped_server,
    "stopped worker": stopped_worker,
    "stopped worker server": stopped_worker_server,
    "stopped coordinator": stopped_coordinator,
    "killed coordinator": killed_coordinator,
    "link cut to a server": cut_to_server,
    "link cut to a worker": cut_to_worker,
    "slow disk": slow_disk,
    "held lock": held_lock,
    "blocking iterator": blocking_iterator,
    "missing worker": missing_worker,
    "full budget": full_budget,
    "endless function": endless_function,
}

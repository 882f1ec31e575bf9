"""Clusters to look at."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch

from benchmarks.stalls.kinds import held_lock
from benchmarks.stalls.scene import Scene, Watched
from examples import movielens
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_WORKER,
    HeartbeatRequest,
    HeartbeatResponse,
    Task,
)
from stratagem_proto.v1.waits_pb2 import Waiter
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, optimizer_program

HOSTILE = '<img src=x onerror="document.title=1">\u202e</script>'
_END_SECONDS = 10.0
_FAR_EPOCHS = 100_000


@contextmanager
def demo(folder: Path) -> Iterator[Watched]:
    """The demo of the README, on two servers and two workers, which does not end by itself."""
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        thread = threading.Thread(target=_run, args=(cluster, folder), daemon=True)
        thread.start()
        try:
            yield Watched.of(cluster.cluster_resolver, "ps")
        finally:
            for index in range(2):
                with suppress(Exception):
                    cluster.kill("worker", index)
            thread.join(_END_SECONDS)


def _run(cluster: LocalCluster, folder: Path) -> None:
    # Its workers are killed at the end.
    with suppress(Exception):
        cluster.run(train, folder)


def train(resolver: ClusterResolver, folder: Path) -> None:
    """Trains the model of the demo, and saves it once."""
    movielens.train(resolver, folder, movielens.Options(epochs=_FAR_EPOCHS))


@contextmanager
def stall(folder: Path) -> Iterator[Watched]:
    """Two workers that train in synchronous steps, one of which waits for a lock of its own."""
    with held_lock(Scene(folder, random.Random(0))) as held:
        yield held.watched


@contextmanager
def crowd(workers: int, variables: int) -> Iterator[tuple[Watched, list[RawClient]]]:
    """A server with many variables, each with slots, and sessions of many workers."""
    names = [f"layers.{number}.weight" for number in range(variables)]
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    with (
        ParameterServer(ServerSettings(token=TOKEN, lease_seconds=600)) as server,
        ExitStack() as open_clients,
    ):
        clients = [
            open_clients.enter_context(
                RawClient(
                    server.address,
                    TOKEN,
                    Task(job="worker", index=index),
                    ROLE_WORKER if index else ROLE_CHIEF,
                )
            )
            for index in range(workers)
        ]
        for client in clients:
            client.open()
        clients[0].create(**{name: torch.ones(16, 16) for name in names})
        clients[0].update(adam, {name: torch.ones(16, 16) for name in names})
        yield watched(server), clients


def watched(server: ParameterServer) -> Watched:
    """A server by itself, as a cluster to look at."""
    from stratagem_deploy.watching.asking import ServerPlace

    return Watched([ServerPlace(server.address)], TOKEN)


def tell_hostile_words(client: RawClient) -> None:
    """Says by a heartbeat what a client may say freely."""
    wait = Waiter(client=HOSTILE, subject=HOSTILE, reason="program", seconds=1.0)
    said = HeartbeatRequest(session_id=client.session_id, doing=HOSTILE, waits=[wait])
    client.unary("Heartbeat", said, HeartbeatResponse)

"""Workers that wait, and how a server fares meanwhile."""

from __future__ import annotations

import statistics
import time

import torch

from stratagem_proto.v1 import session_pb2
from stratagem_rpc.channel import open_channel
from tests.conftest import TOKEN
from tests.probes import SERVING, health, health_at
from tests.psserver.process import ServerProcess
from tests.psserver.wire import RawClient, sgd

WAITERS = 1_000
PATIENCE = 90.0


def worker(address: str, index: int, token: str = TOKEN) -> RawClient:
    client = RawClient(address, token, session_pb2.Task(job="worker", index=index))
    client.open()
    return client


def p50_of_small_updates(client: RawClient) -> float:
    gradient = {"small": torch.ones(100)}
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        client.update(sgd(), gradient)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def health_seconds(server: ServerProcess) -> float:
    """The fastest of a few checks on a new connection."""
    assert health_at(server.health_address) == SERVING
    seconds = []
    with open_channel(server.health_address) as channel:
        for _ in range(5):
            start = time.perf_counter()
            health(channel)
            seconds.append(time.perf_counter() - start)
    return min(seconds)

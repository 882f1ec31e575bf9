"""A worker that waits where another one would compute, in a process of its own.

It loads no more than a client needs, and asks servers below strategies: processors are for servers.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import torch

from benchmarks.peers.stratagem.loads import LOADS, create, delete
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.session import Identity
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_WORKER
from stratagem_rpc.channel import TRANSPORT_VARIABLE

_CLONE_NEWNET = 0x40000000
_WARM_STEPS = 5
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Order:
    """What workers do for one point of the curve.

    Attributes:
        addresses: The "host:port" of the servers.
        token: Their secret.
        load: What a step asks of them, as in `loads`.
        workers: How many take steps at the same time.
        seconds: For how long.
        waiting: The seconds that a step computes, and that its requests are under way.
    """

    addresses: Sequence[str]
    token: str
    load: str
    workers: int
    seconds: float
    waiting: float


@dataclass(frozen=True)
class Taken:
    """What a worker did.

    Attributes:
        steps: How many it took.
        seconds: How long they took together.
        nbytes: What they sent and received.
    """

    steps: int
    seconds: float
    nbytes: int


def forking() -> ForkServerContext:
    """Return what makes processes that have loaded what workers and servers need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.scaling.hosts"])
    return context


class Workers:
    """Processes that wait for orders.

    Args:
        networks: The network of each, as a file of /proc; "" for that of this process.
        transport: How they reach servers, as STRATAGEM_TRANSPORT says it.
    """

    def __init__(self, networks: Sequence[str], transport: str) -> None:
        context = forking()
        self._processes, self._connections = [], []
        for worker, network in enumerate(networks):
            mine, theirs = context.Pipe()
            arguments = theirs, worker, network, transport
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(mine)

    @contextmanager
    def ready(self, order: Order) -> Iterator[Sequence[Connection]]:
        """Yield as many as an order needs, who wait for "go" and then tell what they have `Taken`.

        The first one creates what all need, and frees it in the end.
        """
        first, *others = taking_part = self._connections[: order.workers]
        for each in ([first], others):
            _tell(each, order)
        yield taking_part
        for each in (others, [first]):
            _tell(each, "end")

    def close(self) -> None:
        """End them."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join()


def _tell(workers: Sequence[Connection], what: object) -> None:
    """Tell workers something, and wait until all have answered."""
    for each in workers:
        each.send(what)
    for each in workers:
        received(each)


def received(worker: Connection, seconds: float = _PATIENCE_SECONDS) -> Any:
    """Return what a worker answers.

    Raises:
        TimeoutError: It does not.
    """
    if not worker.poll(seconds):
        raise TimeoutError(f"a worker does not answer in {seconds:g} s")
    return worker.recv()


def serve(parent: Connection, worker: int, network: str, transport: str) -> None:
    """Carry out orders until there are no more."""
    torch.set_num_threads(1)
    os.environ[TRANSPORT_VARIABLE] = transport
    if network:
        enter(network)
    with suppress(EOFError):
        while True:
            _carry_out(parent.recv(), parent, worker)


def _carry_out(order: Order, parent: Connection, worker: int) -> None:
    role = ROLE_WORKER if worker else ROLE_CHIEF
    with ExitStack() as opened:
        servers = ServerGroup(order.addresses, Identity(role, "worker", worker, order.token))
        opened.callback(servers.close)
        if not worker:
            create(servers, order.load)
            opened.callback(delete, servers, order.load)
        load = LOADS[order.load](servers, worker)

        def step() -> None:
            load.pull()
            time.sleep(order.waiting)
            load.push()

        for _ in range(_WARM_STEPS):
            step()
        parent.send("ready")
        while parent.recv() == "go":
            # Not all at once, as workers that have started at different times.
            time.sleep(order.waiting * worker / order.workers)
            before, began, steps = _nbytes(servers), time.perf_counter(), 0
            while time.perf_counter() < began + order.seconds:
                step()
                steps += 1
            parent.send(Taken(steps, time.perf_counter() - began, _nbytes(servers) - before))
    parent.send("ended")


def _nbytes(servers: ServerGroup) -> int:
    return servers.traffic.sent_bytes + servers.traffic.received_bytes


def enter(network: str) -> None:
    """Have this process, while it has but one thread, use the network of another one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(network) as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")

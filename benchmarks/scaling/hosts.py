"""Where servers and workers are: all on this host, or each on a host of its own."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.harness.delays import DelayedSwitch
from benchmarks.harness.namespace import Namespace
from benchmarks.harness.network import Network, addresses, set_up
from benchmarks.scaling.worker import enter, forking
from benchmarks.stalls.scene import Watched
from stratagem_deploy import LocalCluster
from stratagem_psserver import cli as psserver
from stratagem_psserver import server as loaded
from stratagem_rpc.channel import AUTO, TCP

RATE = 1e9
"""Bits a second that the cable of a host carries, each way."""

LATENCY = 0.2e-3
"""Seconds that a packet takes from one host to another.

Kernels differ in whether they can delay packets; a worker waits twice as long for each request.
"""

NEEDED = ("unshare", "nsenter", "ip", "tc")
_START_SECONDS = 120.0
# Its command loads it as it begins; here it is loaded before processes are forked.
assert loaded
_PORT = 2222


@dataclass(frozen=True)
class Hosts:
    """Servers that run, and where workers go.

    Attributes:
        addresses: The "host:port" of each server.
        pids: Their processes, which may have children.
        token: Their secret.
        networks: The network of each worker, as a file of /proc; "" for that of this process.
        transport: How workers reach servers.
        waiting: Seconds that a worker waits in each step besides, since cables do not.
        rate: Bytes a second that a server can be sent, and send; None without a limit.
    """

    addresses: Sequence[str]
    pids: Sequence[int]
    token: str
    networks: Sequence[str]
    transport: str = AUTO
    waiting: float = 0.0
    rate: float | None = None


@contextmanager
def loopback(servers: int, workers: int) -> Iterator[Hosts]:
    """All on this host, through Unix sockets and shared memory."""
    with LocalCluster(servers, workers, processes=True) as cluster:
        resolver = cluster.cluster_resolver
        spec = resolver.cluster_spec()
        places = [spec.task_address("ps", task) for task in range(servers)]
        pids = Watched.of(resolver, "ps").pids()
        yield Hosts(places, [*pids.values()], resolver.cluster_token or "", [""] * workers)


@contextmanager
def links(servers: int, workers: int, rate: float = RATE, delay: float = 0.0) -> Iterator[Hosts]:
    """Each in a namespace with a cable of so many bits a second to one switch; for root.

    The switch holds what it passes up by `delay` seconds.
    """
    names = [
        *(f"server-{each}" for each in range(servers)),
        *(f"worker-{each}" for each in range(workers)),
    ]
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="hosts-")))
        token, found = secrets.token_urlsafe(32), addresses(names)
        (folder / "token").write_text(token)
        (folder / "token").chmod(0o600)
        spaces = {name: opened.enter_context(closing(Namespace())) for name in names}
        carried = f"{rate / 1e6:g}mbit"
        if delay:
            each = [space.network for space in spaces.values()]
            opened.enter_context(closing(DelayedSwitch(each, delay, rate / 8)))
            for name, space in spaces.items():
                set_up(space, found[name], carried)
        else:
            network = opened.enter_context(closing(Network(carried)))
            for name, space in spaces.items():
                network.join(space, name, found[name])
        pids = [
            opened.enter_context(_server(spaces[name].network, task, found[name], folder))
            for task, name in enumerate(names[:servers])
        ]
        for task in range(servers):
            _await_ready(folder / f"{task}.ready", folder / f"{task}.log")
        places = [f"{found[name]}:{_PORT}" for name in names[:servers]]
        networks = [spaces[name].network for name in names[servers:]]
        yield Hosts(places, pids, token, networks, TCP, 4 * LATENCY, rate / 8)


@contextmanager
def _server(network: str, task: int, host: str, folder: Path) -> Iterator[int]:
    """A process with a server, which ends with this one; yields its id."""
    context = forking()
    options = [
        *("--bind", f"{host}:{_PORT}", "--task", str(task), "--token-file", str(folder / "token")),
        *("--transport", TCP, "--insecure", "--ready-file", str(folder / f"{task}.ready")),
    ]
    mine, theirs = context.Pipe()
    arguments = theirs, network, options, folder / f"{task}.log"
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield process.pid or 0
    finally:
        mine.close()
        process.join()


def _serve(parent: Connection, network: str, options: Sequence[str], log: Path) -> None:
    """Run a server in a network until the parent closes the connection, or ends."""
    torch.set_num_threads(1)
    enter(network)
    with log.open("wb") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.argv = ["stratagem ps", *options]
    psserver.main()


def _end_with(parent: Connection) -> None:
    with suppress(EOFError):
        parent.recv()
    os.kill(os.getpid(), signal.SIGTERM)


def _await_ready(file: Path, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"a server does not start:{os.linesep}{log.read_text()}")
        time.sleep(0.02)

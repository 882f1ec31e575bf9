"""A server with many idle clients: `... stratagem.sessions FD COUNT`.

Answers to "memory" are what the server's memory has grown by, in bytes; others are as those of
`stratagem.transfer`. The idle clients live in one more process.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import family
from benchmarks.peers.server import server
from benchmarks.peers.stratagem.server import connected
from benchmarks.peers.stratagem.transfer import Variable
from benchmarks.peers.transfer import Transfers
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.connection import Connection as ServerConnection
from stratagem._ps_client.heartbeat import Heartbeat
from stratagem._ps_client.session import Identity
from stratagem_rpc.channel import Deadlines


@contextmanager
def contestant(count: str) -> Iterator[Answer]:
    """What has a server, and opens the sessions."""
    with connected() as servers:
        transfers = Transfers(partial(Variable, servers))
        transfers("push 100", 0.0)
        before = _resident_bytes(family(os.getpid())[1:])

        def answer(question: str, seconds: float) -> float:
            if question == "memory":
                # A process that has ended meanwhile has nothing to do with sessions.
                now = _resident_bytes(before)
                return sum(now[pid] - before[pid] for pid in now)
            return transfers(question, seconds)

        with server(hold, servers.addresses[0], servers.identity, int(count)):
            yield answer


def hold(parent: Connection, address: str, identity: Identity, count: int) -> None:
    """Keeps so many sessions open, in a process of its own; see `server`."""
    steps = CheckpointSteps()
    connections = [
        ServerConnection(0, address, _another(identity), Deadlines(), steps) for _ in range(count)
    ]
    for connection in connections:
        connection.open()
    Heartbeat(connections, steps, identity.name).start()
    parent.send(count)
    with suppress(EOFError):
        parent.recv()


def _another(identity: Identity) -> Identity:
    return replace(identity, client=secrets.token_bytes(len(identity.client)))


def _resident_bytes(processes: Iterable[int]) -> Mapping[int, int]:
    """Return the memory of each process that there is."""
    found = {}
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[pid] = pages * os.sysconf("SC_PAGE_SIZE")
    return found


if __name__ == "__main__":
    serve(contestant)

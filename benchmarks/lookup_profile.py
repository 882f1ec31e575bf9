"""`python -m benchmarks.lookup_profile`: where the time of a pull and of a push goes.

They are those of `lookups`, of rows that are drawn evenly. What calls of numpy, torch
and sockets take of the processors a profiler says; the rest of the processor time of
client and server, which is without a profiler, is that of requests.
"""

from __future__ import annotations

import cProfile
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import typer

from benchmarks.harness.table import Table
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.row_batches import batches
from benchmarks.peers.server import server
from benchmarks.peers.stratagem.lookups import Rows
from stratagem._servers.group import ServerGroup
from stratagem._servers.session import Identity
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.process import tune
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings

REQUESTS = 320

Seconds: TypeAlias = Mapping[str, float]

# The first that is in the name of a function has it.
_CLIENT = {
    "'sendall'": "sending",
    "'numpy.": "indices in order",
    "_sorted": "indices in order",
    "torch": "copies and sums",
}
_SERVER = {
    "'send'": "answering",
    "'take' of 'numpy.": "rows from memory",
    "index_select": "rows from memory",
    "'put' of 'numpy.": "rows to memory",
    "torch": "arithmetic",
}


class _Profiled(ParameterServer):
    """A server whose event loop can be profiled."""

    def run(self, change: Callable[[], object]) -> None:
        """Calls it on the event loop."""

        async def changed() -> None:
            change()

        self._loop.run(changed())


def _serve(parent: Connection, token: str, asked: Connection) -> None:
    tune()
    torch.set_num_threads(1)
    with _Profiled(ServerSettings(token=token)) as serving:
        parent.send(serving.address)
        while True:
            profiler = cProfile.Profile(time.thread_time)
            for change in (profiler.enable, profiler.disable):
                asked.recv()
                serving.run(change)
                asked.send(_parts(profiler, _SERVER))


def _parts(profiler: cProfile.Profile, known: Mapping[str, str]) -> Seconds:
    profiler.snapshot_stats()
    seconds: defaultdict[str, float] = defaultdict(float)
    for (_, _, name), (_, _, own, *_) in profiler.stats.items():
        for mark, part in known.items():
            if mark in name:
                seconds[part] += own
                break
    return seconds


def _clocks() -> Sequence[float]:
    """The time, and that of processors for the client and for the server."""
    client = time.process_time()
    return time.perf_counter(), client, processor_seconds(os.getpid()) - client


def taken(take: Callable[[], object], asked: Connection) -> Seconds:
    """What some requests take, by parts; together that is the time by the clock."""
    take()
    before = _clocks()
    take()
    clock, client, serving = np.subtract(_clocks(), before).tolist()
    profiler = cProfile.Profile(time.thread_time)
    _ask(asked)
    profiler.runcall(take)
    ours, theirs = _parts(profiler, _CLIENT), _ask(asked)
    return {
        **{f"client, {part}": seconds for part, seconds in ours.items()},
        "client, requests": client - sum(ours.values()),
        **{f"server, {part}": seconds for part, seconds in theirs.items()},
        "server, requests": serving - sum(theirs.values()),
        "waking each other up": clock - client - serving,
        "the clock": clock,
    }


def _ask(asked: Connection) -> Any:
    asked.send(None)
    return asked.recv()


def _shown(kind: str, seconds: Seconds, requests: int) -> str:
    rows = [(part, f"{each / requests * 1e6:.0f}") for part, each in seconds.items()]
    return Table([f"part of a {kind}", "us"], rows).markdown()


def main(
    requests: Annotated[int, typer.Option(help="How many are profiled.")] = REQUESTS,
) -> None:
    """Prints where the time goes."""
    torch.set_num_threads(1)
    (asked, theirs), token = Pipe(), secrets.token_hex()
    with server(_serve, token, theirs) as address:
        servers = ServerGroup([address], Identity(ROLE_CHIEF, "chief", token=token))
        table, drawn = Rows(servers), batches("uniform")
        every = list(islice(cycle(map(torch.from_numpy, drawn)), requests))
        for kind, call in (("pull", table.pull), ("push", table.push)):
            seconds = taken(partial(_each, call, every), asked)
            print(_shown(kind, seconds, requests))
        servers.close()


def _each(
    call: Callable[[torch.Tensor], object], every: Sequence[torch.Tensor]
) -> None:
    for one in every:
        call(one)


if __name__ == "__main__":
    typer.run(main)

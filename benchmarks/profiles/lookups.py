"""Where the time of a pull and of a push of rows goes.

They are those of `lookups`, of rows that are drawn evenly. What calls of numpy, torch and sockets
take of the processors a profiler says; the rest of the processor time of client and server, which
is without a profiler, is that of requests.
"""

from __future__ import annotations

import cProfile
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch

from benchmarks.harness.table import Table
from benchmarks.peers.row_batches import batches
from benchmarks.peers.server import server
from benchmarks.peers.stratagem.lookups import Rows
from benchmarks.profiles.clocks import taken
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.session import Identity
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.environment import tune
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings

Seconds: TypeAlias = Mapping[str, float]

# The first that is in the name of a function has it.
_CLIENT = {
    "'sendall'": "sending",
    "'numpy.": "indices in order",
    "_sorted": "indices in order",
    "summed": "copies and sums",
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


def by_parts(take: Callable[[], object], asked: Connection) -> Seconds:
    """What some requests take, by parts; together that is the time by the clock."""
    alone = taken(take)
    profiler = cProfile.Profile(time.thread_time)
    _ask(asked)
    profiler.runcall(take)
    ours, theirs = _parts(profiler, _CLIENT), _ask(asked)
    return {
        **{f"client, {part}": seconds for part, seconds in ours.items()},
        "client, requests": alone.client - sum(ours.values()),
        **{f"server, {part}": seconds for part, seconds in theirs.items()},
        "server, requests": alone.server - sum(theirs.values()),
        "waking each other up": alone.clock - alone.client - alone.server,
        "the clock": alone.clock,
    }


def _ask(asked: Connection) -> Any:
    asked.send(None)
    return asked.recv()


def page(requests: int) -> str:
    """A table of what so many pulls, and as many pushes, take."""
    torch.set_num_threads(1)
    (asked, theirs), token = Pipe(), secrets.token_hex()
    with server(_serve, token, theirs) as address:
        servers = ServerGroup([address], Identity(ROLE_CHIEF, "chief", token=token))
        table, drawn = Rows(servers), map(torch.from_numpy, batches("uniform"))
        every = list(islice(cycle(drawn), requests))
        pull, push = (
            by_parts(partial(_each, call, every), asked) for call in (table.pull, table.push)
        )
        servers.close()
    return _table(pull, push, requests).markdown()


def _each(call: Callable[[torch.Tensor], object], every: Sequence[torch.Tensor]) -> None:
    for one in every:
        call(one)


def _table(pull: Seconds, push: Seconds, requests: int) -> Table:
    def shown(part: str, seconds: Seconds) -> str:
        return f"{seconds[part] / requests * 1e6:.0f}" if part in seconds else ""

    # A push has all parts of a pull, and more.
    rows = [(part, shown(part, pull), shown(part, push)) for part in push]
    return Table(["part", "us a pull", "us a push"], rows)

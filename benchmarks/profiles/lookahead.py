"""`python -m benchmarks.profiles.lookahead`: what of a step lookups take over a link with a delay.

The click model is trained on two servers, which are reached through a relay that delivers each byte
so much later. By turns its steps look their rows up as they need them, pull them at once by
`prefetch`, have the push before bring them by `lookahead`, or have numbers of this process in place
of rows, so that servers are asked for none. All of them push their gradients.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from typing import Annotated, Any

import torch
import typer

from benchmarks.harness.machine import load
from benchmarks.measurements.clicks import written_log
from benchmarks.peers import clicks
from benchmarks.peers.click_model import ClickModel, our_table
from stratagem import ClusterSpec, DistributedOptimizer, ParameterServerStrategy
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import TCP, TRANSPORT_VARIABLE

_TOKEN = "a-token-of-a-benchmark-0123456789"


def _serve(parent: Connection) -> None:
    """Serve, and name the ports of the relay in place of those where data are taken."""
    torch.set_num_threads(1)
    with ExitStack() as opened:
        servers = [
            opened.enter_context(ParameterServer(ServerSettings(task=task, token=_TOKEN)))
            for task in range(2)
        ]
        told: list[Any] = [server._state.frame_sockets for server in servers]
        parent.send([each.described.data_port for each in told])
        for each, port in zip(told, parent.recv(), strict=True):
            each.described.data_port = port
        parent.send([server.address for server in servers])
        parent.recv()


class _Later(asyncio.Protocol):
    """Passes bytes on some seconds after they have come."""

    def __init__(self, seconds: float, target: int | None = None) -> None:
        self._seconds, self._target = seconds, target
        self._other: asyncio.Future[_Later] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._target is not None:
            self._connecting = asyncio.ensure_future(self._connect(self._target))

    async def _connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        _, other = await loop.create_connection(lambda: _Later(self._seconds), "127.0.0.1", port)
        other._other.set_result(self)
        self._other.set_result(other)

    def data_received(self, data: bytes) -> None:
        self._later(lambda other: other.transport.write(data))

    def connection_lost(self, _: Exception | None) -> None:
        self._later(lambda other: other.transport.close())

    def _later(self, act: Callable[[_Later], None]) -> None:
        due = time.monotonic() + self._seconds

        def connected(other: asyncio.Future[_Later]) -> None:
            asyncio.get_running_loop().call_at(due, act, other.result())

        if self._other.done():
            connected(self._other)
        else:
            self._other.add_done_callback(connected)


def _relay(parent: Connection, ports: Sequence[int], seconds: float) -> None:
    async def run() -> None:
        loop, found = asyncio.get_running_loop(), []
        for port in ports:
            made = await loop.create_server(partial(_Later, seconds, port), "127.0.0.1")
            found.append(made.sockets[0].getsockname()[1])
        parent.send(found)
        await loop.run_in_executor(None, parent.recv)

    asyncio.run(run())


@contextmanager
def _process(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    try:
        yield here
    finally:
        here.send(None)
        process.join(20)
        process.kill()


@contextmanager
def _cluster(seconds: float) -> Iterator[list[str]]:
    with _process(_serve) as servers, _process(_relay, servers.recv(), seconds) as relay:
        servers.send(relay.recv())
        yield servers.recv()


class _Trial:
    """Steps of the click model, of each kind."""

    def __init__(self, strategy: ParameterServerStrategy, size: int) -> None:
        log = clicks.Log(written_log())
        self._strategy = strategy
        with strategy.scope():
            self._model = ClickModel(our_table, log.weights)
        self._optimizer = DistributedOptimizer(self._model.adagrad())
        self._batches = (tuple(map(torch.from_numpy, each)) for each in log.endless(size))
        self.kinds: dict[str, Callable[[int], None]] = {
            "no lookups": self._without_lookups,
            "lookahead": self._ahead,
            "prefetch": lambda count: self._steps(islice(self._batches, count), True),
            "lookups": lambda count: self._steps(islice(self._batches, count), False),
        }

    def _step(self, batch: Sequence[torch.Tensor], prefetches: bool) -> float:
        dense, ids, clicked = batch
        if prefetches:
            self._model.prefetch(ids)
        loss = self._model.loss(dense, ids, clicked)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def _steps(self, batches: Any, prefetches: bool) -> None:
        for batch in batches:
            self._strategy.run(self._step, args=(batch, prefetches))

    def _ahead(self, count: int) -> None:
        def lookups(batch: Sequence[torch.Tensor]) -> Any:
            return zip(self._model.tables, batch[1], strict=True)

        batches = [*islice(self._batches, count)]
        self._steps(self._strategy.lookahead(batches, lookups), True)

    def _without_lookups(self, count: int) -> None:
        asked = RemoteStore.rows

        def made_up(
            self: RemoteStore,
            variables: Sequence[Any],
            rows: Sequence[torch.Tensor],
            training: bool = False,
        ) -> Sequence[torch.Tensor]:
            return [
                one.leaf.new_zeros(len(wanted), *one.shape[1:])
                for one, wanted in zip(variables, rows, strict=True)
            ]

        RemoteStore.rows = made_up  # type: ignore[method-assign]
        try:
            self._steps(islice(self._batches, count), True)
        finally:
            RemoteStore.rows = asked  # type: ignore[method-assign]


def main(
    size: Annotated[int, typer.Option(help="Examples of a step.")] = 1024,
    delay: Annotated[float, typer.Option(help="Of the link, each way, in milliseconds.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="How often all kinds of steps are taken.")] = 9,
    steps: Annotated[int, typer.Option(help="Steps of a kind in a round.")] = 16,
) -> None:
    """Print the time of a step of each kind, and its ratio to that of steps without lookups."""
    torch.set_num_threads(1)
    os.environ[TRANSPORT_VARIABLE] = TCP
    written_log()
    busy = load()
    with _cluster(delay / 1000) as addresses:
        spec = ClusterSpec({"ps": addresses, "worker": ["worker0.test:1"]})
        resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
        with ParameterServerStrategy(resolver, token=_TOKEN) as strategy:
            trial = _Trial(strategy, size)
            # Steps that store new rows take longer.
            trial.kinds["prefetch"](clicks.EXAMPLES // size)
            taken: dict[str, list[float]] = {kind: [] for kind in trial.kinds}
            for _ in range(rounds):
                for kind, run in trial.kinds.items():
                    begin = time.perf_counter()
                    run(steps)
                    taken[kind].append((time.perf_counter() - begin) / steps)
    base = taken["no lookups"]
    for kind, seconds in taken.items():
        ratios = [one / own for one, own in zip(base, seconds, strict=True)]
        print(
            f"{kind:12} {statistics.median(seconds) * 1e3:8.1f} ms a step, speed over no lookups "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(f"batches of {size}, a delay of {delay:g} ms each way; the load was {busy} before")


if __name__ == "__main__":
    typer.run(main)

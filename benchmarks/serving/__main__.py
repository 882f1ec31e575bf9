"""`python -m benchmarks.serving`: rows from a reader, from reader servers, and from Redis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

import stratagem
from benchmarks.harness.machine import load, machine
from benchmarks.harness.table import Table
from stratagem.nn import DynamicEmbedding
from stratagem_deploy import LocalCluster
from stratagem_reader.lookup_client import LookupClient, Wanted

_WIDTH = 16
_TABLE = "weight"
_START_SECONDS = 60.0

Look = Callable[[torch.Tensor], torch.Tensor]
"""Returns the rows of keys."""


def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a lookup of many.")] = 4096,
    rounds: Annotated[int, typer.Option(min=2, help="Alternated lookups of each.")] = 100,
) -> None:
    """Look up rows of 16 float32 in turn at each, beside a Redis on this machine.

    Needs `redis-server`, and `pip install redis hiredis`.
    """
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        generator = torch.Generator().manual_seed(0)
        keys = torch.randperm(10 * rows, generator=generator)[:rows] * 7919
        _train(folder / "versions", keys)
        looks = _looks(stack, folder, keys)
        batches = [_some(keys, batch, generator) for _ in range(rounds)]
        single = [_some(keys, 1, generator) for _ in range(10 * rounds)]
        _require_alike(looks, batches[0])
        many, one = _timed(looks, batches), _timed(looks, single)
    print(_table(many, one, batch).markdown())
    about = machine() | {"load after": load(), "rows": rows, "batch": batch, "rounds": rounds}
    print(", ".join(f"{name} {value}" for name, value in about.items()))


def _some(keys: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    return keys[torch.randint(0, len(keys), (count,), generator=generator)]


def _program(resolver: Any, folder: Path, keys: torch.Tensor) -> None:
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        table = DynamicEmbedding(_WIDTH, max_bytes=1 << 34)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1))

    def step(some: torch.Tensor) -> None:
        optimizer.zero_grad()
        table(some).square().mean().backward()
        optimizer.step()

    for some in keys.split(250_000):
        strategy.run(step, args=(some,))
    strategy.save(folder)


def _train(folder: Path, keys: torch.Tensor) -> None:
    with LocalCluster(ps=1, workers=1) as cluster:
        cluster.run(_program, folder, keys)


def _looks(stack: ExitStack, folder: Path, keys: torch.Tensor) -> Mapping[str, Look]:
    """Return what looks rows up, by its name."""
    reader = stack.enter_context(stratagem.Reader(folder / "versions"))
    address = stack.enter_context(_serving(folder))
    found: dict[str, Look] = dict(_redis(stack, folder, keys, reader))
    found["in process"] = lambda some: reader.lookup(_TABLE, some)
    for name, transport in {"unix socket": "auto", "data port": "tcp", "gRPC": "grpc"}.items():
        client = LookupClient(address, "", transport=transport)
        stack.callback(client.close)
        found[f"server, {name}"] = _by(client)
    return found


def _by(client: LookupClient) -> Look:
    client.look_up([], min_version=1, wait=_START_SECONDS)
    return lambda some: client.look_up([Wanted(_TABLE, some)]).rows[0]


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    ready = folder / "ready"
    command = [sys.executable, "-m", "stratagem_deploy.cli", "serve"]
    command += ["--from", str(folder / "versions"), "--ready-file", str(ready)]
    # Lookups are small, and threads would only share the cores.
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=own) as process:
        try:
            _await(ready)
            yield json.loads(ready.read_text())["address"]
        finally:
            process.kill()


def _await(path: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{path.name} did not come in {_START_SECONDS:g} s")
        time.sleep(0.05)


def _redis(
    stack: ExitStack, folder: Path, keys: torch.Tensor, reader: stratagem.Reader
) -> Iterator[tuple[str, Look]]:
    """Yield lookups in a Redis that has the same rows."""
    import redis

    program, place = shutil.which("redis-server"), folder / "redis"
    if program is None:
        raise SystemExit("redis-server is missing; install it, as by `apt-get`")
    options = ["--port", "0", "--unixsocket", str(place), "--save", "", "--appendonly", "no"]
    process = stack.enter_context(subprocess.Popen([program, *options], stdout=subprocess.DEVNULL))
    stack.callback(process.kill)
    _await(place)
    client = redis.Redis(unix_socket_path=str(place))
    for some in keys.split(10_000):
        rows = reader.lookup(_TABLE, some).numpy()
        names = [str(key) for key in some.tolist()]
        client.hset(
            "t", mapping={name: row.tobytes() for name, row in zip(names, rows, strict=True)}
        )

    def tensor(found: Sequence[Any]) -> torch.Tensor:
        return torch.frombuffer(bytearray(b"".join(found)), dtype=torch.float32).view(-1, _WIDTH)

    def by_hmget(some: torch.Tensor) -> torch.Tensor:
        return tensor(client.hmget("t", [str(key) for key in some.tolist()]))

    def by_pipeline(some: torch.Tensor) -> torch.Tensor:
        pipeline = client.pipeline(transaction=False)
        for key in some.tolist():
            pipeline.hget("t", str(key))
        return tensor(pipeline.execute())

    yield "Redis, HMGET", by_hmget
    yield "Redis, pipeline", by_pipeline


def _require_alike(looks: Mapping[str, Look], keys: torch.Tensor) -> None:
    first, *others = (look(keys) for look in looks.values())
    assert all(torch.equal(first, other) for other in others)


def _timed(
    looks: Mapping[str, Look], batches: Sequence[torch.Tensor]
) -> Mapping[str, Sequence[float]]:
    """Return the seconds of each lookup, in turns, in ascending order."""
    seconds: dict[str, list[float]] = {name: [] for name in looks}
    for number, keys in enumerate(batches):
        for name, look in looks.items():
            began = time.perf_counter()
            look(keys)
            if number >= len(batches) // 10:
                seconds[name].append(time.perf_counter() - began)
    return {name: sorted(each) for name, each in seconds.items()}


def _table(
    many: Mapping[str, Sequence[float]], one: Mapping[str, Sequence[float]], batch: int
) -> Table:
    base = _median(many["Redis, HMGET"])
    rows = []
    for name, each in many.items():
        single = one[name]
        rows.append(
            [
                name,
                f"{batch / _median(each):,.0f}",
                f"{base / _median(each):.1f}",
                f"{1e6 * _median(single):,.0f}",
                f"{1e6 * single[int(0.99 * len(single))]:,.0f}",
            ]
        )
    columns = ["", "rows/s", "times HMGET", "one row, median us", "p99 us"]
    return Table(columns, rows)


def _median(ordered: Sequence[float]) -> float:
    return ordered[len(ordered) // 2]


if __name__ == "__main__":
    typer.run(main)

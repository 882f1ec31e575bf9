"""`python -m benchmarks.cold_clicks`: the click model, on a server with less memory than rows.

All rows of the tables of `examples/dlrm.py` are written to the server, by gradients of zero, which
leave values and state as they are. Then it takes steps, saves, and goes on after a restore on two
servers. Each server is in a control group of its own, with --limit bytes. The losses have to be
those of a server with all memory, which has the rows of these steps alone. Takes root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from torch import nn
from tqdm import tqdm

import stratagem
from benchmarks.harness.limits import ControlGroup, memory_of
from benchmarks.harness.machine import load, machine
from examples.clicks.log import ROWS, ClickLog
from examples.clicks.training import Trainer
from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_rpc.asking import begin_status
from stratagem_rpc.channel import open_channel

_TOKEN = "the secret of the benchmark"
_BATCH, _STAGED_BYTES = 2048, 128 << 20
_START_SECONDS = 120.0

# A request has a few MB.
_FILLED_AT_ONCE = 1 << 17


@contextmanager
def _server(
    folder: Path, number: int, options: Sequence[str], group: ControlGroup | None
) -> Iterator[str]:
    """Run a server; yield its address."""
    ready, token = folder / f"ready-{number}", folder / "token"
    token.touch(0o600)
    token.write_text(_TOKEN)
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "stratagem_psserver", "--bind", "127.0.0.1:0"]
    command += ["--task", str(number), "--token-file", str(token), "--ready-file", str(ready)]
    command += ["--staged-bytes", str(_STAGED_BYTES), *options]
    with (folder / f"log-{number}").open("ab") as log:
        process = subprocess.Popen(group.joined(command) if group else command, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield str(json.loads(ready.read_text())["address"])
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _trained(addresses: Sequence[str], rows: Sequence[int]) -> Iterator[Trainer]:
    spec = ClusterSpec({"ps": [*addresses], "chief": ["127.0.0.1:1"]})
    resolver = SimpleClusterResolver(spec, task_type="chief", task_id=0)
    resolver.cluster_token = _TOKEN
    torch.manual_seed(0)
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        yield Trainer(strategy, torch.device("cpu"), rows)


def _fill(trainer: Trainer, rows: Sequence[int]) -> None:
    """Write all rows, as they are."""
    optimizer = trainer.optimizer

    def step(table: nn.Module, begin: int, stop: int) -> None:
        optimizer.zero_grad()
        (0 * table(torch.arange(begin, stop)).sum()).backward()
        optimizer.step()

    with tqdm(total=sum(rows), unit="row", unit_scale=True, desc="filling") as shown:
        for table, count in zip(trainer.model.tables, rows, strict=True):
            for begin in range(0, count, _FILLED_AT_ONCE):
                stop = min(begin + _FILLED_AT_ONCE, count)
                trainer.strategy.run(step, args=(table, begin, stop))
                shown.update(stop - begin)


def _told(address: str) -> str:
    """Return what a server says of its tables."""
    with open_channel(address) as channel:
        files = begin_status(channel, _TOKEN, 10.0).result().parameter_server.table_files
    asked = max(1, files.found_rows + files.missed_rows)
    return (
        f"{files.rows:,} rows of {files.row_bytes / 1e9:.2f} GB, {files.file_bytes / 1e9:.2f} GB "
        f"on disk, {files.resident.used / 1e9:.2f} in memory, {files.found_rows / asked:.1%} found"
    )


class Timed:
    """Prints how long parts of the run take."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, what: str) -> None:
        now = time.monotonic()
        print(f"{what}: {now - self._began:.0f} s, load {load():.0f}", flush=True)
        self._began = time.monotonic()


def main(
    rows: Annotated[int, typer.Option(help="Rows of all tables, of 128 bytes each.")] = 100_000_000,
    steps: Annotated[int, typer.Option(help="Steps before the checkpoint, and after it.")] = 30,
    limit: Annotated[int, typer.Option(help="Bytes of memory of a server.")] = 3 << 30,
    table_bytes: Annotated[int, typer.Option(help="--table-bytes of a server.")] = 3 << 28,
    folder: Annotated[Path, typer.Option(help="On a local disk.")] = Path("runs/benchmarks"),
) -> None:
    """Exit code: 0 when the losses are equal to the bit; else 1."""
    print(machine(), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    each = [max(1, count * rows // sum(ROWS)) for count in ROWS]
    timed = Timed()
    with TemporaryDirectory(prefix="cold-clicks-", dir=folder.resolve()) as name:
        place = Path(name)
        losses = _limited(place, each, steps, (limit, table_bytes), timed)
        wanted = _unlimited(place, each, steps)
        timed.say(f"{2 * steps} steps on a server with all memory")
    for number, (one, other) in enumerate(zip(losses, wanted, strict=True)):
        if one != other:
            raise SystemExit(f"step {number}: the loss is {one}, with all memory {other}")
    print(f"{len(losses)} losses are equal to the bit, from {losses[0]:.4f} to {losses[-1]:.4f}")


def _steps(trainer: Trainer, rows: Sequence[int], first: int, steps: int) -> list[float]:
    batches = ClickLog(rows).batches(first * _BATCH, steps * _BATCH, _BATCH)
    return [trainer.train(batch) for batch in trainer.ahead(batches)]


def _unlimited(place: Path, rows: Sequence[int], steps: int) -> list[float]:
    with _server(place, 0, (), None) as address, _trained([address], rows) as trainer:
        # In two parts, since a lookup ahead would see another step.
        return _steps(trainer, rows, 0, steps) + _steps(trainer, rows, steps, steps)


def _limited(
    place: Path, rows: Sequence[int], steps: int, limits: tuple[int, int], timed: Timed
) -> list[float]:
    limit, table_bytes = limits
    options = ("--table-bytes", str(table_bytes), "--table-folder", str(place))
    say: Callable[[str], None] = timed.say
    with ExitStack() as groups:
        one, two, three = (groups.enter_context(memory_of(limit)) for _ in range(3))
        with _server(place, 0, options, one) as address:
            with _trained([address], rows) as trainer:
                _fill(trainer, rows)
                say(f"filled: {_told(address)}")
                losses = _steps(trainer, rows, 0, steps)
                say(f"{steps} steps: {_told(address)}")
                trainer.strategy.save(place / "saved")
            nbytes = sum(file.stat().st_size for file in place.glob("saved/*/*"))
            say(f"saved {nbytes / 1e9:.2f} GB; most memory {one.most_memory / 1e9:.2f} GB")
        with (
            _server(place, 0, options, two) as first,
            _server(place, 1, options, three) as second,
            _trained([first, second], rows) as trainer,
        ):
            trainer.strategy.restore(place / "saved").assert_consumed()
            say(f"restored on two servers: {_told(first)}")
            losses += _steps(trainer, rows, steps, steps)
            memory = max(two.most_memory, three.most_memory)
            say(f"{steps} steps on two servers; most memory {memory / 1e9:.2f} GB")
    return losses


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    typer.run(main)

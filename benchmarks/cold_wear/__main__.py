"""`python -m benchmarks.cold_wear --minutes 30`: the disk under a table over time, as a picture.

A table of which a quarter is in memory takes steps of Adagrad, over ids by Zipf's law with the
exponent 1.05, as fast as they go. The rows of the table are written once before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from matplotlib import figure
from tqdm import tqdm

import stratagem
from benchmarks.harness.machine import load, machine
from benchmarks.harness.table import Table
from stratagem_deploy import LocalCluster
from stratagem_proto.v1.status_pb2 import TableFilesStatus
from stratagem_rpc.asking import begin_status
from stratagem_rpc.channel import open_channel

_FOLDER = Path("runs/benchmarks")
_SAMPLE_SECONDS = 2.0
_COLUMNS, _BATCH, _EXPONENT = 16, 4096, 1.05
_ROW_BYTES = 2 * _COLUMNS * 4

# Files may take so many times the bytes of all rows.
_MOST_DISK = 3.0


class Sample(NamedTuple):
    """What the server said at one moment.

    Attributes:
        minutes: Since the first one.
        steps: Steps so far.
        files: Of its tables.
    """

    minutes: float
    steps: int
    files: TableFilesStatus


class Training:
    """Steps in a thread of their own, until they are stopped.

    Args:
        cluster: Where the table is.
        rows: How many there are.
    """

    def __init__(self, cluster: LocalCluster, rows: int) -> None:
        self._strategy = stratagem.ParameterServerStrategy(cluster.cluster_resolver)
        with self._strategy.scope():
            self._table = stratagem.nn.Embedding(rows, _COLUMNS)
        adagrad = torch.optim.Adagrad(self._table.parameters(), lr=0.05)
        self._optimizer = stratagem.DistributedOptimizer(adagrad)
        self._rows, self.steps, self._is_over = rows, 0, threading.Event()

    def _step(self, keys: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        (self._table(keys) - 1).square().sum().backward()
        self._optimizer.step()

    def fill(self) -> None:
        for keys in tqdm(torch.randperm(self._rows).split(1 << 15), unit="step", desc="filling"):
            self._strategy.run(self._step, args=(keys,))

    def _train(self) -> None:
        drawn, power = np.random.default_rng(3), 1 - _EXPONENT
        names = np.random.default_rng(1).permutation(self._rows)

        def batches() -> Iterator[torch.Tensor]:
            while not self._is_over.is_set():
                parts = drawn.random(_BATCH) * ((self._rows + 1) ** power - 1) + 1
                ranks = np.minimum(parts ** (1 / power) - 1, self._rows - 1)
                yield torch.from_numpy(names[ranks.astype(np.int64)])

        for keys in self._strategy.lookahead(batches(), lambda each: [(self._table, each)]):
            self._strategy.run(self._step, args=(keys,))
            self.steps += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._train)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
            self._strategy.close()


def _samples(cluster: LocalCluster, training: Training, seconds: float) -> Iterator[Sample]:
    resolver = cluster.cluster_resolver
    (address,) = resolver.cluster_spec().job_tasks("ps")
    assert address and resolver.cluster_token
    began = time.monotonic()
    with open_channel(address) as channel:
        for _ in tqdm(range(int(seconds / _SAMPLE_SECONDS)), unit="sample"):
            status = begin_status(channel, resolver.cluster_token, 30.0).result()
            minutes = (time.monotonic() - began) / 60
            yield Sample(minutes, training.steps, status.parameter_server.table_files)
            time.sleep(_SAMPLE_SECONDS)


def _amplification(samples: Sequence[Sample]) -> list[float]:
    """Return the bytes written for each byte of changed rows, of each time between two samples."""
    found = list[float]()
    for before, now in pairwise(samples):
        changed = now.files.changed_bytes - before.files.changed_bytes
        written = now.files.written_bytes - before.files.written_bytes
        found.append(written / changed if changed else 0.0)
    return found


def _drawn(samples: Sequence[Sample]) -> figure.Figure:
    picture = figure.Figure(figsize=(14, 3.5), layout="constrained")
    minutes = [each.minutes for each in samples]
    disk, writes, hits = picture.subplots(1, 3)
    disk.plot(minutes, [each.files.file_bytes / 1e6 for each in samples], label="files")
    disk.plot(minutes, [each.files.row_bytes / 1e6 for each in samples], label="rows")
    disk.set(title="MB on disk", xlabel="minutes", ylim=(0, None))
    disk.legend()
    writes.plot(minutes[1:], _amplification(samples))
    writes.set(title="bytes written for a byte of changed rows", xlabel="minutes", ylim=(0, None))
    found = [
        100 * (now.files.found_rows - was.files.found_rows) / max(1, _asked(now) - _asked(was))
        for was, now in pairwise(samples)
    ]
    hits.plot(minutes[1:], found)
    hits.set(title="% of rows found in memory", xlabel="minutes", ylim=(0, 100))
    return picture


def _asked(sample: Sample) -> int:
    return sample.files.found_rows + sample.files.missed_rows


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long there are steps.")] = 30.0,
    rows: Annotated[int, typer.Option(min=1, help="Of the table, of 128 bytes.")] = 2_000_000,
    folder: Annotated[Path | None, typer.Option(help="A folder on the disk.")] = None,
) -> None:
    """Train, and draw the bytes on disk and the write amplification.

    Exit code: 0 when the files never took more than three times the rows; else 1.
    """
    print(machine(), f"load {load():.1f}", flush=True)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix="cold-wear-", dir=folder or _FOLDER) as place,
        LocalCluster(
            1,
            workers=0,
            processes=True,
            table_bytes=rows * _ROW_BYTES // 4,
            table_folder=Path(place).resolve(),
        ) as cluster,
    ):
        training = Training(cluster, rows)
        training.fill()
        with training.running():
            samples = [*_samples(cluster, training, minutes * 60.0)]
    picture = _FOLDER / "cold-wear.png"
    _drawn(samples).savefig(picture, dpi=150)
    print(_table(samples).markdown())
    print(f"load {load():.1f}; {picture}")
    if max(each.files.file_bytes for each in samples) > _MOST_DISK * rows * _ROW_BYTES:
        raise SystemExit("the files took more than three times the rows")


def _table(samples: Sequence[Sample]) -> Table:
    """Return the figures of each fifth of the time."""
    lines, fifth = list[list[str]](), max(2, len(samples) // 5)
    for begin in range(0, len(samples) - 1, fifth):
        some = samples[begin : begin + fifth + 1]
        first, last = some[0], some[-1]
        changed = last.files.changed_bytes - first.files.changed_bytes
        written = last.files.written_bytes - first.files.written_bytes
        steps, seconds = last.steps - first.steps, 60 * (last.minutes - first.minutes)
        lines.append(
            [
                f"{first.minutes:.1f} to {last.minutes:.1f}",
                f"{steps / seconds:.1f}",
                f"{(last.files.missed_rows - first.files.missed_rows) / max(1, steps):.0f}",
                f"{written / 1e6 / seconds:.2f}",
                f"{written / changed:.2f}" if changed else "",
                f"{max(each.files.file_bytes for each in some) / first.files.row_bytes:.2f}",
            ]
        )
    names = ["minutes", "steps a second", "rows read a step", "MB written a second"]
    return Table([*names, "amplification", "most disk, of the rows"], lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

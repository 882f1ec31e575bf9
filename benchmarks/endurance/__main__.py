"""`python -m benchmarks.endurance --minutes 30`: what processes use under load, as a picture."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from matplotlib import figure
from matplotlib.axes import Axes
from tqdm import tqdm

from benchmarks.endurance.load import END, load
from benchmarks.endurance.samples import KINDS, Kind, Samples, growth
from benchmarks.harness.table import Table
from benchmarks.stalls.scene import Watched
from stratagem_deploy import LocalCluster

SERVERS = WORKERS = 2

_FOLDER = Path("runs/benchmarks")
_SAMPLE_SECONDS = 2.0
# Less than by default, so that there are many images in a run.
_LOG_BYTES = 64 << 20


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long there is load.")] = 30.0,
) -> None:
    """Train on two servers with logs, and draw memory, descriptors, threads and disk.

    Exit code: 0 when all of them are flat after the first fifth of the time; else 1.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    os.environ["STRATAGEM_LOG_BYTES"] = str(_LOG_BYTES)
    with TemporaryDirectory(prefix="endurance-", dir=_FOLDER) as name:
        samples, steps = _observed(Path(name).resolve(), minutes * 60.0)
    picture = _FOLDER / "endurance.png"
    _drawn(samples).savefig(picture, dpi=150)
    rows = [[*row, "yes" if flat else "no"] for *row, flat in _rows(samples)]
    print(Table(["", "of", "after the warm-up", "at the end", "flat"], rows).markdown())
    print(f"{sum(steps)} steps in {minutes:g} minutes; {picture}")
    if not all(flat for *_, flat in _rows(samples)):
        raise SystemExit("not all is flat")


def _observed(folder: Path, seconds: float) -> tuple[Samples, Sequence[int]]:
    log = folder / "log"
    log.mkdir()
    with LocalCluster(
        SERVERS, WORKERS, processes=True, durability="log", durability_folder=log
    ) as cluster:
        steps: list[int] = []
        with _training(cluster, folder, steps):
            pids = _pids(cluster, folder)
            samples = _samples(
                pids, {f"ps:{each}": log / f"ps-{each}" for each in range(SERVERS)}, seconds
            )
    return samples, steps


@contextmanager
def _training(cluster: LocalCluster, folder: Path, steps: list[int]) -> Iterator[None]:
    thread = threading.Thread(target=lambda: steps.extend(cluster.run(load, folder)))
    thread.start()
    try:
        yield
    finally:
        (folder / END).touch()
        thread.join()


def _pids(cluster: LocalCluster, folder: Path) -> Mapping[str, int]:
    files = {f"worker:{each}": folder / f"worker-{each}.pid" for each in range(WORKERS)}
    while not all(file.exists() and file.read_text() for file in files.values()):
        time.sleep(0.1)
    servers = Watched.of(cluster.cluster_resolver, "ps").pids()
    return {**servers, **{name: int(file.read_text()) for name, file in files.items()}}


def _samples(pids: Mapping[str, int], folders: Mapping[str, Path], seconds: float) -> Samples:
    samples = Samples()
    for _ in tqdm(range(int(seconds / _SAMPLE_SECONDS)), unit="sample"):
        samples.take(pids, folders)
        time.sleep(_SAMPLE_SECONDS)
    return samples


def _rows(samples: Samples) -> Iterator[tuple[str, str, str, str, bool]]:
    for kind in KINDS:
        for name, values in samples.values[kind].items():
            found = growth(kind, values)
            yield kind.name, name, f"{found.early:.0f}", f"{found.late:.0f}", found.is_flat


def _drawn(samples: Samples) -> figure.Figure:
    picture = figure.Figure(figsize=(14, 3.5), layout="constrained")
    for axes, kind in zip(picture.subplots(1, len(KINDS)), KINDS, strict=True):
        _draw(axes, kind, samples)
    return picture


def _draw(axes: Axes, kind: Kind, samples: Samples) -> None:
    minutes = [(each - samples.seconds[0]) / 60.0 for each in samples.seconds]
    for name, values in samples.values[kind].items():
        axes.plot(minutes, values, label=name)
    axes.set(title=kind.name, xlabel="minutes", ylim=(0, None))
    axes.legend()


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

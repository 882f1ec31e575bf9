"""`python -m benchmarks.stalls`: holds clusters up, and counts how often the culprit is named."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from tqdm import tqdm

from benchmarks.harness.table import Table
from benchmarks.stalls.kinds import KINDS, Stall
from benchmarks.stalls.scene import Scene
from stratagem_deploy.watching.doctor import findings

# As of `stratagem doctor`.
_PATIENCE_SECONDS = 2.0
_MOST_SECONDS = 10.0
_POLL_SECONDS = 0.25
_FOLDER = Path("runs/benchmarks")


def main(
    count: Annotated[int, typer.Option(min=1, help="Stalls in all.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the first stall; each has the next one.")] = 0,
    only: Annotated[str, typer.Option(help="One kind of stall.")] = "",
    share: Annotated[float, typer.Option(help="Least share that has to be named.")] = 0.95,
) -> None:
    """Hold clusters up in each way in turn; the first finding has to name the culprit in 10 s.

    Exit code: 0 when enough culprits were named; else 1.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    kinds = [only] if only else [*KINDS]
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    misses: list[str] = []
    with tqdm(range(count), unit="stall") as bar:
        for number in bar:
            kind = kinds[number % len(kinds)]
            bar.set_description(kind)
            seconds, words = named(kind, seed + number)
            times[kind].append(seconds)
            if seconds > _MOST_SECONDS:
                misses.append(f"seed {seed + number}, {kind}: {words}")
                tqdm.write(misses[-1])
    print(_table(times).markdown())
    if len(misses) > (1 - share) * count:
        raise SystemExit(f"{len(misses)} of {count} were not named in {_MOST_SECONDS:g} s")


def named(kind: str, seed: int) -> tuple[float, str]:
    """Hold a cluster up.

    Returns:
        After how many seconds the culprit was named; more than 10 if it was not. Then what was said
        last, and what it should have been.
    """
    with TemporaryDirectory(prefix="stalls-", dir=_FOLDER) as folder:
        scene = Scene(Path(folder).resolve(), random.Random(seed))
        with KINDS[kind](scene) as stall:
            return _await_naming(stall)


def _await_naming(stall: Stall) -> tuple[float, str]:
    began = time.monotonic()
    while True:
        found = findings(stall.watched.ask(), _PATIENCE_SECONDS)
        seconds = time.monotonic() - began
        if found and set(found[0].culprits) == stall.culprits:
            return seconds, found[0].what
        if seconds > _MOST_SECONDS:
            said = "; ".join(each.what for each in found) or "nothing was found"
            return seconds, f"not {stall.culprits}, but: {said}"
        time.sleep(_POLL_SECONDS)


def _table(times: Mapping[str, Sequence[float]]) -> Table:
    total = [seconds for some in times.values() for seconds in some]
    rows = [_row(kind, some) for kind, some in (*times.items(), ("all", total)) if some]
    return Table(["", "stalls", "named in 10 s", "median, s", "longest, s"], rows)


def _row(kind: str, times: Sequence[float]) -> list[str]:
    within = [seconds for seconds in times if seconds <= _MOST_SECONDS]
    middle = f"{statistics.median(within):.1f}" if within else ""
    longest = f"{max(within):.1f}" if within else ""
    return [kind, str(len(times)), str(len(within)), middle, longest]


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

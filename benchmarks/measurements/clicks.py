"""A click model with 26 tables on two servers, trained with 1 and 2 workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign
from benchmarks.measurements.workers import counted
from benchmarks.peers import clicks as peers
from examples.clicks.log import ClickLog
from examples.clicks.model import DLRM

FILE = Path("runs/benchmarks/drawn-clicks.npz")
_OURS = {"26 Embedding": "example", "26 sparse nn.Embedding": "sparse", "one Embedding": "joined"}
_THEIRS = {"TensorFlow": "26", "TensorFlow, a variable a server": "joined"}
_SIZES = 1024, 4096


def clicks(counts: Sequence[int] = (1, 2), file: Path = FILE) -> Sequence[Contest]:
    """Examples of steps that find all rows, and of the first pass, for which all rows are new."""
    written = written_log(file)
    return [_contest(written, workers) for workers in counts]


def _contest(file: str, workers: int) -> Contest:
    arguments = [file, str(workers)]
    contestants = [
        *(Contestant(name, "stratagem.clicks", [*arguments, kind]) for name, kind in _OURS.items()),
        *(
            Contestant(name, "tensorflow.clicks", [*arguments, kind], Foreign.TENSORFLOW)
            for name, kind in _THEIRS.items()
        ),
    ]
    if workers == 1:
        contestants.append(Contestant("local loop", "limits.clicks", [file]))
    names = [each.name for each in contestants]
    who = counted(workers)
    steady = [
        *(Question(f"steady, {n}, {who}", f"steady {n} time", names, 1.0, "us") for n in _SIZES),
        Question(f"processors, 1024, {who}", "steady 1024 all", names, 1.0, "us"),
    ]
    if workers > 1:
        return Contest("clicks", contestants, steady)
    with_servers = [name for name in names if name != "local loop"]
    questions = [
        Question("first pass, 1024", "first 1024 time", names, 15.0, "us"),
        Question("loss after a pass, 1024", "first 1024 loss", names, 15.0, ""),
        *steady,
        Question("servers' processors, 1024", "steady 1024 servers", with_servers, 1.0, "us"),
    ]
    return Contest("clicks", contestants, questions)


def written_log(file: Path = FILE) -> str:
    """Write the examples and the first weights, unless they are there already; return where."""
    if not file.exists():
        _write_log(file)
    return str(file.absolute())


def _write_log(file: Path) -> None:
    torch.manual_seed(0)
    model = DLRM(peers.MEASUREMENTS, [1] * peers.COLUMNS, peers.DIM)
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    arrays: dict[str, Any] = {f"weight{n}": each.detach().numpy() for n, each in enumerate(dense)}
    batch = ClickLog(peers.ROWS).batch(0, peers.EXAMPLES)
    arrays |= {name: getattr(batch, name).numpy() for name in ("dense", "ids", "clicked", "chance")}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)

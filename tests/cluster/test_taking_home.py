"""A table that is larger than what its worker may use goes home and comes back."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import stratagem
from stratagem_deploy import LocalCluster

# So large that half of it is much more than the stacks of threads that come later.
ROWS, SIZE = 1_500_000, 64
NBYTES = 4 * ROWS * SIZE
ROOM = NBYTES // 2


def limit_memory() -> None:
    """Lets this process take so much more memory than it has, and no more."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmData:"))
    most = int(line.split()[1]) * 1024 + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        torch.empty(NBYTES, dtype=torch.uint8)
    except RuntimeError:
        return
    raise AssertionError("the table would find room")


def work(resolver: Any, path: Path, comes_back: bool) -> torch.Tensor:
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope(meta_above=1 << 20):
            table = nn.Embedding(ROWS, SIZE)
        rows = torch.arange(0, ROWS, 997)
        table(rows)  # so that connections and threads are there
        limit_memory()
        if comes_back:
            strategy.restore(path).assert_consumed()
        else:
            strategy.export(table, path)
        with torch.no_grad():
            found: torch.Tensor = table(rows).clone()
        return found


def test_a_table_goes_home_and_back_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with LocalCluster(ps=2, workers=1, processes=True) as cluster:
        (answers,) = cluster.run(work, path, False)
    plain = nn.Embedding(ROWS, SIZE)
    plain.load_state_dict(load_file(path))
    assert torch.equal(plain(torch.arange(0, ROWS, 997)), answers)
    with LocalCluster(ps=3, workers=1, processes=True) as cluster:
        (again,) = cluster.run(work, path, True)
    assert torch.equal(again, answers)

"""The clusters of contestants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stratagem_deploy import LocalCluster

DURABILITY = "BENCHMARK_DURABILITY"
"""The environment variable with the durability of servers; without it they have none."""

REPLICAS = "BENCHMARK_REPLICAS"
"""The environment variable with how many processes each server has; without it one."""

# On the disk where figures are kept, since the system's folder of temporary files may be in memory.
_STATE = Path("runs/benchmarks")


@contextmanager
def cluster(**settings: Any) -> Iterator[LocalCluster]:
    """A cluster of processes; what its servers keep on disk is removed at the end.

    Args:
        settings: What it gets besides.
    """
    with ExitStack() as opened:
        durability = os.environ.get(DURABILITY, "none")
        if durability != "none":
            _STATE.mkdir(parents=True, exist_ok=True)
            folder = opened.enter_context(TemporaryDirectory(prefix="state-", dir=_STATE))
            settings |= {"durability": durability, "durability_folder": os.path.abspath(folder)}
        settings |= {"replicas": int(os.environ.get(REPLICAS, "1"))}
        yield opened.enter_context(LocalCluster(processes=True, **settings))

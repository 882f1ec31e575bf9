"""A coordinator that has workers count the batches of a dataset."""

from __future__ import annotations

import json
from contextlib import closing

from benchmarks.harness import coordinators
from benchmarks.kills import coordinating
from benchmarks.kills.attack import PATIENCE_SECONDS, SERVERS, WORKERS, Attack
from benchmarks.kills.coordinating import BATCH, ROWS
from benchmarks.kills.victims import Coordinator, Servers, WorkerServers


def batched(attack: Attack) -> list[str]:
    """Have rows counted while anybody is killed; return what is wrong."""
    with attack.cluster(worker_servers=WORKERS) as running:
        resolver, module = running.cluster_resolver, coordinating.__name__
        with closing(
            Coordinator(lambda: coordinators.started(module, attack.folder, resolver))
        ) as coordinator:
            attack.strike(coordinator, Servers(running, SERVERS), WorkerServers(running, WORKERS))
            coordinator.finish(PATIENCE_SECONDS)
    return _faults(*json.loads((attack.folder / coordinating.RESULT).read_text()))


def _faults(passes: int, counts: list[int], calls: int) -> list[str]:
    faults = [
        f"row {row} counted {each} times in {passes} passes"
        for row, each in enumerate(counts)
        if each != passes
    ]
    expected = passes * ROWS // BATCH
    return faults if calls == expected else [*faults, f"{calls} functions ran of {expected}"]

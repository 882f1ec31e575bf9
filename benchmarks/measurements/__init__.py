"""What is measured: who is asked what, one file for each measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.harness.contest import Contest
from benchmarks.measurements import (
    capacity,
    clicks,
    durability,
    lookups,
    movielens,
    resnet,
    scheduling,
    sessions,
    startup,
    steps,
    transfer,
    workers,
)

MEASUREMENTS: Mapping[str, Callable[[], Sequence[Contest]]] = {
    "clicks": clicks.clicks,
    "transfer": lambda: [transfer.transfer()],
    "small-updates": lambda: [transfer.small_updates()],
    "resnet": lambda: [resnet.resnet()],
    "lookups": lambda: [lookups.lookups()],
    "movielens": lambda: [movielens.movielens()],
    "workers": lambda: [workers.workers()],
    "sessions": lambda: [sessions.sessions()],
    "startup": lambda: [startup.startup()],
    "scheduling": scheduling.scheduling,
    "steps": steps.steps,
    "durability": durability.durability,
    "capacity": lambda: [capacity.capacity()],
}

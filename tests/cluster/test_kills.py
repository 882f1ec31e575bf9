"""Servers with logs, and workers, that are killed while others train."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.kills.__main__ import PROGRAMS
from benchmarks.kills.attack import Attack

# Each kill takes a start of a process.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# A kill during these takes a third of the time of one during others.
BRIEF = ("variables, async", "variables, bounded", "sync")


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_that_was_acknowledged_is_lost_or_there_twice(name: str, tmp_path: Path) -> None:
    kills = 12 if name in BRIEF else 6
    attack = Attack(tmp_path, kills, random.Random(name))
    assert PROGRAMS[name](attack) == []
    assert attack.done.total() >= kills

"""Servers with logs, and workers, that are killed while others train."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.kills.__main__ import PROGRAMS
from benchmarks.kills.attack import Attack

# Each kill takes a start of a process.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

KILLS = 9


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_that_was_acknowledged_is_lost_or_there_twice(name: str, tmp_path: Path) -> None:
    attack = Attack(tmp_path, KILLS, random.Random(name))
    assert PROGRAMS[name](attack) == []
    assert attack.done.total() >= KILLS

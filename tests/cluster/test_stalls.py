"""Clusters of processes that are held up, whose culprits `stratagem doctor` has to name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.stalls.kinds import KINDS
from benchmarks.stalls.scene import Scene
from stratagem_deploy.watching.doctor import findings
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


# Each is much like one that is not here.
ALIKE = {
    "stopped worker",
    "stopped worker server",
    "link cut to a worker",
    "endless function",
    "blocking iterator",
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.long] * (kind in ALIKE)) for kind in KINDS],
)
def test_the_first_finding_names_the_culprit(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](Scene(tmp_path, random.Random(kind))) as stall:

        def is_named() -> bool:
            found = findings(stall.watched.ask(), 2.0)
            return bool(found) and set(found[0].culprits) == stall.culprits

        eventually(is_named)

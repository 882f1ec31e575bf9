"""Clusters of processes that are held up, whose culprits `stratagem doctor` has to name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.stalls.kinds import KINDS
from benchmarks.stalls.scene import Scene
from stratagem_deploy.watching.diagnosis.doctor import findings
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


# Of stalls that are alike, one.
ALIKE = {
    "stopped worker": "stopped server",
    "stopped worker server": "stopped coordinator",
    "link cut to a worker": "link cut to a server",
    "endless function": "held lock",
    "blocking iterator": "held lock",
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

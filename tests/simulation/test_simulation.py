"""Servers keep what they promise, whatever networks and processes do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice

import pytest

from tests.simulation.faults import FAULTS, REPLICA_FAULTS
from tests.simulation.programs.publishing import Publishing
from tests.simulation.programs.sharing import Sharing
from tests.simulation.simulation import PROGRAMS, shape_of_seed, simulate

pytestmark = pytest.mark.first

SEEDS, FEW, FEW_VERSIONS = 120, 8, 3

# Seeds beyond these that have found a fault.
FOUND = (109, 2277, 500_697, 701_476, 706_491, 719_704)

_DIGEST = "from tests.simulation.test_simulation import digest; print(digest(range(6)))"


def digest(seeds: range) -> str:
    """The traces of seeds, in short."""
    traces = sha256()
    for seed in seeds:
        traces.update("\n".join(map(str, simulate(seed).trace)).encode())
    return traces.hexdigest()


def simulated(seeds: Iterable[int]) -> tuple[Counter[str], Counter[str]]:
    """How often there were which faults and programs, in seeds that keep all promises."""
    faults, programs = Counter[str](), Counter[str]()
    for seed in seeds:
        outcome = simulate(seed)
        assert not outcome.violations, f"python -m tests.simulation --seed {seed}"
        faults += outcome.faults + outcome.effects
        programs[outcome.program] += 1
    return faults, programs


def test_few_seeds_violate_no_promise() -> None:
    faults, programs = simulated((*FOUND, *range(FEW)))
    assert faults and len(programs) > 2


def test_few_versions_are_followed_otherwise_than_published() -> None:
    fitting = (seed for seed in range(SEEDS) if _publishes(seed))
    faults, _ = simulated(islice(fitting, FEW_VERSIONS))
    assert faults["crash"] and faults["request lost"]


def _publishes(seed: int) -> bool:
    return isinstance(shape_of_seed(seed).program, Publishing)


# Half a minute of a core, which others may need.
@pytest.mark.timeout(600)
@pytest.mark.full("some seeds, and those that have found faults, are simulated above")
def test_no_seed_violates_a_promise() -> None:
    faults, programs = simulated((*FOUND, *range(SEEDS)))
    assert set(faults) == FAULTS | REPLICA_FAULTS
    assert min(faults[fault] for fault in FAULTS) > SEEDS // 10
    others = (program.__name__ for program in PROGRAMS)
    assert set(programs) >= {Publishing.__name__, Sharing.__name__, *others}
    for kind, least in (("logs", SEEDS // 5), ("replicas", SEEDS // 8), ("moving", SEEDS // 12)):
        assert sum(number for name, number in programs.items() if kind in name) > least


@pytest.mark.full("seeds that fail are repeated by the other tests")
def test_a_seed_takes_the_same_course_in_every_process() -> None:
    other = subprocess.run(
        [sys.executable, "-c", _DIGEST],
        # The hashes of this process are others.
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert other.stdout == f"{digest(range(6))}\n"

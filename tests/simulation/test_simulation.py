"""Servers keep what they promise, whatever networks and processes do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256

import pytest

from tests.simulation.command_line import main
from tests.simulation.planted import PLANTED
from tests.simulation.shrinking import shrunk
from tests.simulation.simulation import PROGRAMS, simulate

SEEDS = 300
FAULTS = {
    "connection cut",
    "crash",
    "end of a call late",
    "failing disk",
    "partition",
    "pause",
    "reply late",
    "reply lost",
    "request doubled",
    "request late",
    "request lost",
    "restart",
    "slow disk",
    "slow work",
    "torn log",
}
# A planted fault has to be found within these.
MOST_SEEDS = 2000

_DIGEST = "from tests.simulation.test_simulation import digest; print(digest(range(12)))"


def digest(seeds: range) -> str:
    """The traces of seeds, in short."""
    traces = sha256()
    for seed in seeds:
        traces.update("\n".join(map(str, simulate(seed).trace)).encode())
    return traces.hexdigest()


def test_no_seed_violates_a_promise() -> None:
    faults, programs = Counter[str](), Counter[str]()
    for seed in range(SEEDS):
        outcome = simulate(seed)
        assert not outcome.violations, f"python -m tests.simulation --seed {seed}"
        faults += outcome.faults
        programs[outcome.program] += 1
    assert set(faults) == FAULTS
    assert min(faults.values()) > SEEDS // 10
    assert set(programs) >= {program.__name__ for program in PROGRAMS}
    assert sum(number for name, number in programs.items() if "logs" in name) > SEEDS // 5


def test_a_seed_takes_the_same_course_in_every_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {f"{digest(range(12))}\n"}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    with PLANTED[fault]():
        assert any(simulate(seed).violations for seed in range(MOST_SEEDS))


def test_a_failing_seed_is_told_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with PLANTED["a reply is recorded too late"]():
        seed = next(seed for seed in range(MOST_SEEDS) if simulate(seed).violations)
        assert main(["--seed", str(seed)]) == 1
    told = capsys.readouterr().out
    assert f"replay: python -m tests.simulation --seed {seed}" in told
    assert "is applied 2 times" in told
    assert "OpenSession of worker:0 arrives" in told
    assert main(["--seed", str(seed)]) == 0


def test_a_failing_seed_is_shrunk_to_the_faults_that_it_needs() -> None:
    with PLANTED["a reply is recorded too late"]():
        seed = next(seed for seed in range(MOST_SEEDS) if simulate(seed).violations)
        shelter = shrunk(seed)
        outcome = simulate(seed, shelter)
        assert outcome.violations
        assert set(outcome.faults) <= FAULTS - shelter.without
        assert len(outcome.faults) < len(simulate(seed).faults)

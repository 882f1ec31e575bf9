"""The simulation finds what is wrong, and says how to see it again."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.simulation.command_line import main
from tests.simulation.faults import FAULTS, REPLICA_FAULTS
from tests.simulation.planted.catalogue import PLANTED
from tests.simulation.planted.replication import FAULTS as FAULTS_OF_REPLICAS
from tests.simulation.planted.replication import FAULTS_OF_MOVES
from tests.simulation.shrinking import shrunk
from tests.simulation.simulation import shape_of_seed, simulate

# A planted fault has to be found within these, unless it is one of those that are `RARE`.
MOST_SEEDS = 2000

# Seeds that come upon faults which few others do; they are tried first.
RARE = {
    "a read shows what is not on disk": 3284,
    "a session is with any run": 1062,
    "dropped contributions are forgotten": 1836,
    "memory is taken for the disk": 935,
}


def is_cheap(seed: int) -> bool:
    """Whether a run has no replicas, which take several times as long."""
    return not shape_of_seed(seed).replicated


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    seeds = chain([RARE[fault]] if fault in RARE else [], filter(is_cheap, range(MOST_SEEDS)))
    with PLANTED[fault]():
        assert any(simulate(seed).violations for seed in seeds)


@pytest.mark.parametrize("fault", FAULTS_OF_REPLICAS)
def test_a_fault_planted_into_replicas_is_found(fault: str) -> None:
    replicated = (seed for seed in range(MOST_SEEDS) if shape_of_seed(seed).replicated)
    with FAULTS_OF_REPLICAS[fault]():
        assert any(simulate(seed).violations for seed in replicated)


@pytest.mark.parametrize("fault", FAULTS_OF_MOVES)
def test_a_fault_planted_into_moves_is_found(fault: str) -> None:
    moving = (seed for seed in range(MOST_SEEDS) if shape_of_seed(seed).moves)
    with FAULTS_OF_MOVES[fault]():
        assert any(simulate(seed).violations for seed in moving)


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
        assert set(outcome.faults) <= (FAULTS | REPLICA_FAULTS) - shelter.without
        assert len(outcome.faults) < len(simulate(seed).faults)

"""The simulation finds what is wrong, and says how to see it again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from tests.simulation.command_line import main
from tests.simulation.faults import FAULTS, REPLICA_FAULTS
from tests.simulation.planted.catalogue import PLANTED
from tests.simulation.planted.plant import Plant
from tests.simulation.planted.publication import FAULTS as FAULTS_OF_VERSIONS
from tests.simulation.planted.replication import FAULTS as FAULTS_OF_REPLICAS
from tests.simulation.planted.replication import FAULTS_OF_MOVES
from tests.simulation.programs.publishing import Publishing
from tests.simulation.shrinking import shrunk
from tests.simulation.simulation import Shape, shape_of_seed, simulate

pytestmark = pytest.mark.first

# A planted fault has to be found within these, unless `RARE` has a seed that finds it.
MOST_SEEDS = 2000

# Seeds that come upon faults which few others do; they are tried first.
RARE = {
    "a backup takes over before the lease is over": (266,),
    "a barrier is forgotten": (43,),
    "a change is a step too early": (78,),
    "a former primary keeps its state": (82,),
    "a former process goes on": (2997,),
    "a lease is longer than the backup waits": (12,),
    "a read shows what is not on disk": (28, 200, 367),
    "a segment is read beyond its end": (706_491,),
    "a server answers although the task has moved away": (3265,),
    "a server that gives a move up forgets what it has": (202,),
    "an answer leaves before its record": (113,),
    "dropped contributions are forgotten": (7296,),
    "memory is taken for the disk": (935,),
    "old batches are taken for later ones": (113,),
    "removed segments are read": (40,),
    "requests are not recorded that wait while a server begins to follow": (4214,),
    "shared memory is not copied": (72,),
    "steps are not held": (188,),
    "the last counted step is forgotten": (430,),
    "the log is from shared memory": (66,),
    "the task is handed over to a server that has vanished": (782_860,),
    "what was answered is lost at the handover": (223,),
}


def is_found(fault: str, plant: Plant, fits: Callable[[Shape], bool]) -> bool:
    """Return whether a run of those that fit finds a fault."""
    fitting = (seed for seed in range(MOST_SEEDS) if fits(shape_of_seed(seed)))
    return any(tells(seed, plant) for seed in chain(RARE.get(fault, ()), fitting))


def tells(seed: int, plant: Plant) -> bool:
    """Return whether a run finds a fault, which must be the one that is planted."""
    with plant():
        found = bool(simulate(seed).violations)
    assert not (found and simulate(seed).violations), f"seed {seed} finds a fault without the plant"
    return found


@pytest.mark.long
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    # Runs with replicas take several times as long.
    assert is_found(fault, PLANTED[fault], lambda shape: not shape.replicated)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS_OF_REPLICAS)
def test_a_fault_planted_into_replicas_is_found(fault: str) -> None:
    assert is_found(fault, FAULTS_OF_REPLICAS[fault], lambda shape: shape.replicated)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS_OF_VERSIONS)
def test_a_fault_planted_into_versions_is_found(fault: str) -> None:
    assert is_found(fault, FAULTS_OF_VERSIONS[fault], publishes)


def publishes(shape: Shape) -> bool:
    return isinstance(shape.program, Publishing)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS_OF_MOVES)
def test_a_fault_planted_into_moves_is_found(fault: str) -> None:
    assert is_found(fault, FAULTS_OF_MOVES[fault], lambda shape: shape.moves)


def test_no_run_is_told_where_none_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--only", "no program is called so", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "0 seeds from 0" in told and "crash" in told


def test_a_failing_seed_is_told_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with PLANTED["a reply is recorded too late"]():
        seed = next(seed for seed in range(MOST_SEEDS) if simulate(seed).violations)
        assert main(["--seed", str(seed)]) == 1
    told = capsys.readouterr().out
    assert f"replay: python -m tests.simulation --seed {seed}" in told
    assert "is applied 2 times" in told
    assert "OpenSession of worker:0 arrives" in told
    assert main(["--seed", str(seed)]) == 0


@pytest.mark.full("a fault is found and told by the other test, and shrinking changes no verdict")
def test_a_failing_seed_is_shrunk_to_the_faults_that_it_needs() -> None:
    with PLANTED["a reply is recorded too late"]():
        seed = next(seed for seed in range(MOST_SEEDS) if simulate(seed).violations)
        shelter = shrunk(seed)
        outcome = simulate(seed, shelter)
        assert outcome.violations
        assert set(outcome.faults) <= (FAULTS | REPLICA_FAULTS) - shelter.without
        assert len(outcome.faults) < len(simulate(seed).faults)

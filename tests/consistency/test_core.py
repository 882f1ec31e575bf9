"""Each consistency keeps what docs/consistency.md promises, in any order of events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.consistency import Async, Bounded, Consistency, Sync
from tests.consistency.checker import Checker, Violation, reads_by_consistency
from tests.consistency.faults import (
    DoubleApplies,
    LooseBound,
    LostAdds,
    StaleReads,
    WrongOrder,
)
from tests.consistency.history import Answered
from tests.consistency.simulation import GROUP, Scenario, Server, Simulation
from tests.full import examples

pytestmark = pytest.mark.first

SCHEDULES = examples(350)  # of each consistency
CHECKED_READS = 285 * SCHEDULES  # at least; likewise

asynchronous = st.just(Async())
bounded = st.builds(Bounded, st.integers(0, 3))
synchronous = st.builds(Sync, st.none() | st.integers(1, 3))


def scenarios(
    consistency: st.SearchStrategy[Consistency],
) -> st.SearchStrategy[Scenario]:
    return st.builds(
        Scenario,
        seed=st.integers(0, 2**32 - 1),
        consistency=consistency,
        num_workers=st.integers(3, 4),
        num_servers=st.integers(1, 3),
        crashes=st.sampled_from([0.0, 0.1]),
    )


def violations(simulation: Simulation) -> list[Violation]:
    return Checker(simulation.run(), simulation.scenario.num_workers).violations()


@pytest.mark.parametrize("consistency", [asynchronous, bounded, synchronous], ids=str)
def test_no_schedule_violates_a_property(
    consistency: st.SearchStrategy[Consistency],
) -> None:
    checked: Counter[type[Consistency]] = Counter()

    @settings(max_examples=SCHEDULES, deadline=None, derandomize=True, database=None)
    @given(scenarios(consistency))
    def check(scenario: Scenario) -> None:
        simulation = Simulation(scenario)
        assert not violations(simulation)
        checked.update(reads_by_consistency(simulation.history))

    check()
    assert max(checked.values()) >= CHECKED_READS


@settings(max_examples=examples(100), deadline=None, derandomize=True, database=None)
@given(
    scenarios(asynchronous | bounded | synchronous),
    st.lists(asynchronous | bounded | synchronous, min_size=1, max_size=5),
)
def test_all_workers_change_with_the_same_step(
    scenario: Scenario, changes: list[Consistency]
) -> None:
    assert not violations(Simulation(replace(scenario, steps=20, changes=changes)))


@settings(max_examples=examples(30), deadline=None)
@given(scenarios(asynchronous))
def test_nobody_waits_in_asynchronous_steps(scenario: Scenario) -> None:
    simulation = Simulation(scenario)
    simulation.run()
    assert simulation.held == 0


@settings(max_examples=examples(30), deadline=None)
@given(scenarios(st.builds(Sync, st.integers(1, 2))))
def test_what_is_dropped_is_counted(scenario: Scenario) -> None:
    simulation = Simulation(replace(scenario, crashes=0.0))
    history = simulation.run()
    (report,) = simulation.servers[0].clocks.report()
    assert report.group == GROUP
    dropped = [e for e in history if isinstance(e, Answered) and not e.counted]
    assert Counter(event.worker for event in dropped) == Counter(
        {clock.worker: clock.dropped for clock in report.workers}
    )


@settings(max_examples=examples(30), deadline=None)
@given(scenarios(synchronous))
def test_no_bytes_stay_reserved(scenario: Scenario) -> None:
    simulation = Simulation(replace(scenario, crashes=0.0))
    simulation.run()
    assert not any(server.budget.used for server in simulation.servers)


@pytest.mark.parametrize(
    ("fault", "consistency", "rules"),
    [
        (StaleReads, Async(), {"ALL-2"}),
        (StaleReads, Sync(), {"SYN-1"}),
        (LostAdds, Async(), {"ALL-1"}),
        (LostAdds, Sync(), {"ALL-1"}),
        (DoubleApplies, Async(), {"ALL-1"}),
        (DoubleApplies, Bounded(1), {"ALL-1"}),
        (LooseBound, Bounded(0), {"BND-1"}),
        (LooseBound, Bounded(2), {"BND-1"}),
        (WrongOrder, Async(), {"ALL-1"}),
        (WrongOrder, Sync(), {"ALL-1"}),
    ],
)
def test_a_planted_fault_is_caught(
    fault: type[Server], consistency: Consistency, rules: set[str]
) -> None:
    scenario = Scenario(seed=1, consistency=consistency)
    assert not violations(Simulation(scenario))
    found = violations(Simulation(scenario, fault))
    assert rules <= {violation.rule for violation in found}

"""Scenarios, answers and deviations belong together, and there are enough of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.differential.answer import Answer
from tests.differential.expectations import DEVIATIONS, HERE, RECORDED
from tests.differential.scenario import scenarios
from tests.spec.specification import rows
from tests.tables import read_tables

SCENARIOS = scenarios()

FEWEST_PER_PREFIX = 5
FEWEST_ERRORS = 30

# The TPUStrategy of 1.12 is gone, and that of today takes TPUs.
NOT_COMPARED = {"TPU"}

# Where Stratagem is free to differ, because TensorFlow is odd or its pages promise
# something else.
DECISIONS = frozenset(
    [f"ODD-{number}" for number in (1, *range(3, 14), *range(15, 24), 25)]
    + ["EXT-1", "EXT-4", "VOR-4", "VOR-5", "STR-14", "COO-2", "STR-23", "PS1-10"]
    + ["COO-4", "COO-5", "COO-8", "FLT-3", "FLT-7"]
    # What TensorFlow did when it was asked, and should not have.
    + ["EXT-10", "MS-3", "MS-5", "REP-7", "RMV-1", "SHV-7", "INP-36"]
    # Copies of a variable that replicas write for themselves, where TensorFlow has one.
    + ["VAR-24"]
    # Members of variables that TensorFlow deprecates, and one that it has not everywhere.
    + ["VAR-25", "VRD-14"]
    # A key of TF_CONFIG that TensorFlow does not read any more.
    + ["RES-7"]
)


def test_every_scenario_has_been_recorded() -> None:
    names = {scenario.name for scenario in SCENARIOS}
    assert sorted(names - RECORDED.keys()) == []
    assert sorted(RECORDED.keys() - names) == []


def test_there_are_enough_scenarios_of_each_prefix() -> None:
    counts = Counter(scenario.prefix for scenario in SCENARIOS)
    tested = Counter(row.prefix for row in rows().values() if row.needs_a_test)
    least = {prefix: min(tested[prefix], FEWEST_PER_PREFIX) for prefix in tested}
    lacking = {prefix for prefix in least if counts[prefix] < least[prefix]}
    assert lacking == NOT_COMPARED


def test_there_are_enough_errors() -> None:
    failing = [name for name, answer in RECORDED.items() if any(errors_in(answer))]
    assert len(failing) >= FEWEST_ERRORS


def test_every_behaviour_of_the_selection_is_compared() -> None:
    selected = {int(number) for number in read_tables(HERE / "selection.toml")}
    covered = {number for scenario in SCENARIOS for number in scenario.core}
    assert sorted(selected - covered) == []


def test_scenarios_name_rows_that_exist() -> None:
    named = {row for scenario in SCENARIOS for row in scenario.rows}
    assert sorted(named - rows().keys()) == []


def test_expected_fragments_are_what_tensorflow_says() -> None:
    wrong = {
        name
        for name, answer in RECORDED.items()
        for error in errors_in(answer)
        if error["says"] and not any(error["says"].values())
    }
    assert sorted(wrong - DEVIATIONS.keys()) == []


def test_deviations_are_decided_ones_of_scenarios_that_exist() -> None:
    assert sorted({each.row for each in DEVIATIONS.values()} - DECISIONS) == []
    assert sorted(DEVIATIONS.keys() - RECORDED.keys()) == []


def errors_in(answer: Answer) -> Iterator[dict[str, Answer]]:
    """Yield the errors in an answer."""
    if isinstance(answer, dict) and "error" in answer:
        yield answer
    elif isinstance(answer, dict | list):
        for part in answer.values() if isinstance(answer, dict) else answer:
            yield from errors_in(part)

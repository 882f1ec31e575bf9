"""Stratagem answers as TensorFlow did, but for the deviations that are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.comparison import difference
from tests.differential.expectations import DEVIATIONS, RECORDED
from tests.differential.libraries.stratagem import Stratagem
from tests.differential.scenario import Scenario, scenarios
from tests.spec.markers import markers


def kept(scenario: Scenario) -> bool:
    """Whether `make test` compares a scenario: one of each prefix, and what has no other test."""
    first = min(each.name for each in SCENARIOS if each.prefix == scenario.prefix)
    return scenario.name == first or not all(map(has_test, scenario.rows))


def has_test(row: str) -> bool:
    """Whether a test of the specification shows a row."""
    return any(file.startswith("spec/") for file in markers().get(row, ()))


SCENARIOS = scenarios()
FULL = pytest.mark.full("tests of the specification show its rows")

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    # Old spellings and what has no effect warn; that they do is shown elsewhere.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.* has no effect"),
]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=() if kept(each) else FULL) for each in SCENARIOS],
)
def test_the_answer_is_the_expected_one(scenario: Scenario, tmp_path: Path) -> None:
    answer = scenario.answer(Stratagem(tmp_path))
    deviation = DEVIATIONS.get(scenario.name)
    recorded = RECORDED[scenario.name]
    if deviation is None:
        assert difference(recorded, answer) is None
    else:
        assert difference(deviation.answer, answer) is None
        assert difference(recorded, answer) is not None, "this is no deviation"

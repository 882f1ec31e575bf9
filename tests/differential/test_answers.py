"""Stratagem answers as TensorFlow did, but for the deviations that are listed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.differential.comparison import difference
from tests.differential.expectations import DEVIATIONS, RECORDED
from tests.differential.libraries.stratagem import Stratagem
from tests.differential.scenario import Scenario, scenarios
from tests.spec.markers import of_tests
from tests.spec.specification import rows


def case(scenario: Scenario, is_first: bool) -> Any:
    """Return a scenario, which carries the rows that only scenarios show.

    `make test` compares those that carry one, and the first of each prefix.
    """
    alone = [row for row in scenario.rows if row not in of_tests() and rows()[row].needs_a_test]
    marks = [pytest.mark.spec(*alone)] if alone else [] if is_first else [FULL]
    return pytest.param(scenario, id=scenario.name, marks=marks)


def cases() -> Iterator[Any]:
    """Return all scenarios by name."""
    for _, group in groupby(scenarios(), lambda each: each.prefix):
        first, *others = group
        yield case(first, is_first=True)
        yield from (case(each, is_first=False) for each in others)


FULL = pytest.mark.full("tests of the specification show its rows")

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    # Old spellings and what has no effect warn; that they do is shown elsewhere.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.* has no effect"),
]


@pytest.mark.parametrize("scenario", [*cases()])
def test_the_answer_is_the_expected_one(scenario: Scenario, tmp_path: Path) -> None:
    answer = scenario.answer(Stratagem(tmp_path))
    deviation = DEVIATIONS.get(scenario.name)
    recorded = RECORDED[scenario.name]
    if deviation is None:
        assert difference(recorded, answer) is None
    else:
        assert difference(deviation.answer, answer) is None
        assert difference(recorded, answer) is not None, "this is no deviation"

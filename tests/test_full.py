"""What `make test` leaves out has a reason, and no file is lost by that."""

from __future__ import annotations

import re
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.full import KEPT, LOST, by_pairs, by_values, leaves_out

pytest_plugins = ("pytester",)

TESTS = Path(__file__).parent

# What other targets of the Makefile run; a file as a whole is marked so.
TARGETS = "chaos|cluster|compose|dashboard|full|install|long|netns|ray|site"

# Files whose only tests are of another target.
ELSEWHERE = {
    "examples/test_coordinator.py": "a whole program trains for minutes",
    "examples/test_torchrun.py": "a whole program trains for minutes",
}


@pytest.fixture
def config(pytestconfig: pytest.Config) -> pytest.Config:
    """What `make test` was asked for."""
    given = {Path(each).resolve() for each in pytestconfig.args}
    if not leaves_out(pytestconfig) or given != {TESTS}:
        pytest.skip("only `make test` can tell")
    return pytestconfig


def test_each_file_has_a_test_in_make_test_or_says_who_runs_it(config: pytest.Config) -> None:
    files, kept = set(TESTS.rglob("test_*.py")), config.stash[KEPT]
    silent = {path for path in files - kept if not runs_elsewhere(path)}
    assert {path.relative_to(TESTS).as_posix() for path in silent} == ELSEWHERE.keys()


def test_each_row_of_the_specification_is_shown_in_make_test(config: pytest.Config) -> None:
    assert config.stash[LOST] == set()


def runs_elsewhere(path: Path) -> bool:
    """Whether a file as a whole belongs to another target, or needs a package that is not here."""
    mark = rf"^pytestmark = (?s:.{{0,200}}?)\bpytest\.mark\.({TARGETS})\b"
    package = r"^(\w+ = )?pytest\.importorskip\("
    source = path.read_text(encoding="utf-8")
    return re.search(f"{mark}|{package}", source, re.MULTILINE) is not None


@pytest.mark.parametrize("reason", ["", "slow"])
def test_a_mark_without_a_reason_is_refused(pytester: pytest.Pytester, reason: str) -> None:
    pytester.makeini("[pytest]\nmarkers = full")
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.full({reason!r})\ndef test_it(): pass\n")
    run = pytester.runpytest("-p", "tests.full")
    run.stderr.fnmatch_lines("*test_it is marked full and does not say why the rest is enough*")


def test_a_product_by_pairs_leaves_no_pair_and_no_case_out() -> None:
    axes = "abc", "de", "fghi", "jk"
    cases = by_pairs("one,two,three,four", *axes).args[1]
    assert sorted(case.values for case in cases) == sorted(product(*axes))
    few = [case.values for case in cases if not case.marks]
    assert len(few) < len(cases) / 3
    assert all(
        any(set(pair) <= set(case) for case in few)
        for one, other in combinations(axes, 2)
        for pair in product(one, other)
    )


def test_a_product_by_values_leaves_no_value_and_no_case_out() -> None:
    axes = "abc", "de", "fghi"
    cases = by_values("one,two,three", *axes).args[1]
    assert sorted(case.values for case in cases) == sorted(product(*axes))
    few = [case.values for case in cases if not case.marks]
    assert len(few) == 4
    assert {value for case in few for value in case} == set("".join(axes))

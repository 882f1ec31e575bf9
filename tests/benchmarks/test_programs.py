"""The lines that programs of others get are few, and those that the page shows."""

from __future__ import annotations

import pytest

from benchmarks.programs.catalogue import PROGRAMS, SCRIPTS
from benchmarks.programs.difference import Difference, differences

MOST_LINES = 5
SHOWN = differences()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_few_lines_of_the_page_make_a_program_for_workers(program: object) -> None:
    from benchmarks.programs.catalogue import Program

    assert isinstance(program, Program)
    difference = SHOWN[program.name]
    changed = difference.applied(program.text)
    compile(changed, program.name, "exec")
    assert 0 < difference.size <= MOST_LINES
    assert "= ParameterServerStrategy(" in changed
    assert "stratagem" not in program.text


def test_each_script_is_a_program_of_the_page() -> None:
    names = {each.stem for each in SCRIPTS.glob("*.py")}
    assert names == {each.name for each in PROGRAMS} == set(SHOWN)


def test_lines_are_put_where_the_program_has_the_ones_beside_them() -> None:
    difference = Difference([" a", "+b", "@@", "-d", "+e"])
    assert difference.applied("a\nc\nd\n") == "a\nb\nc\ne\n"
    assert difference.size == 2


@pytest.mark.parametrize("program", ["c\nd\n", "a\na\nd\n", "a\n"])
def test_a_program_without_these_lines_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match="times"):
        Difference([" a", "+b", "@@", "-d", "+e"]).applied(program)

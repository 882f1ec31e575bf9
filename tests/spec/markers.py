"""Which tests carry which rows, read from their source.

A row that no test of its own carries is carried by the scenarios that compare it with TensorFlow.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.spec.specification import rows

TESTS = Path(__file__).parent.parent
SCENARIOS = TESTS / "differential" / "scenarios"

_ID = re.compile(r"[A-Z][A-Z0-9]{1,2}-[A-Z]?\d+[a-z]?")


@cache
def markers() -> Mapping[str, set[str]]:
    """Return for each row the files with a test or a scenario that carries it."""
    compared = _files_by_row(SCENARIOS.glob("*.py"), "@scenario(")
    needed = {row: compared[row] for row in compared if rows()[row].needs_a_test}
    return {**needed, **of_tests()}


@cache
def of_tests() -> Mapping[str, set[str]]:
    """Return for each row that tests of its own carry their files."""
    return _files_by_row(TESTS.rglob("test_*.py"), "pytest.mark.spec")


def _files_by_row(paths: Iterable[Path], marker: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in sorted(paths):
        for row in _rows_in(path, marker):
            found.setdefault(row, set()).add(path.relative_to(TESTS).as_posix())
    return found


def _rows_in(path: Path, marker: str) -> Iterator[str]:
    # Ids may reach the marker by another name of it, so every string that is one counts.
    source = path.read_text(encoding="utf-8")
    if marker in source:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and _ID.fullmatch(str(node.value)):
                yield str(node.value)

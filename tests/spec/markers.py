"""Which tests carry which rows, read from their source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent

_ID = re.compile(r"[A-Z][A-Z0-9]{1,2}-[A-Z]?\d+[a-z]?")


@cache
def markers() -> Mapping[str, set[str]]:
    """Return for each row the files with a test that carries it."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for row in _rows_in(path):
            found.setdefault(row, set()).add(path.relative_to(TESTS).as_posix())
    return found


def _rows_in(path: Path) -> Iterator[str]:
    # Ids may reach the marker by another name of it, so every string that is one counts.
    source = path.read_text(encoding="utf-8")
    if "pytest.mark.spec" in source:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and _ID.fullmatch(str(node.value)):
                yield str(node.value)

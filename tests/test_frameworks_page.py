"""The lines that a program for a framework gets are those of its example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/guide/frameworks.md").read_text(encoding="utf-8")
SECTIONS = re.findall(
    r"^## \w.*?\((?:\.\./)+(examples/\w+\.py)\).*?^```diff\n(.*?)^```", PAGE, re.DOTALL | re.M
)
MOST_LINES = 5


@pytest.mark.parametrize(("example", "difference"), SECTIONS)
def test_a_few_lines_of_the_example_are_all_that_changes(example: str, difference: str) -> None:
    program = (ROOT / example).read_text(encoding="utf-8")
    added = [line[1:].strip() for line in difference.splitlines() if line.startswith("+")]
    removed = [line[1:].strip() for line in difference.splitlines() if line.startswith("-")]
    assert 0 < len(added) <= MOST_LINES
    for line in [*added, *removed]:
        assert line in re.sub(
            r"ParameterServerStrategy\(resolver\)", "ParameterServerStrategy()", program
        )


def test_each_framework_with_a_loop_has_its_lines() -> None:
    adapters = {each.stem for each in (ROOT / "client/stratagem/frameworks").glob("[a-z]*.py")}
    assert len(SECTIONS) == len(adapters - {"torchmetrics"})

"""The attackers' list in the documentation, whose tests have to be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_attack_of_the_list_has_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "securing.md").read_text(encoding="utf-8")
    section = page.partition("## What somebody might try")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)`", row.rpartition(" | ")[2] or row)
        assert named, row
        for name in named:
            assert "def test_" in (ROOT / "tests" / name).read_text(encoding="utf-8"), name

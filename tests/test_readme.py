"""What the README and the questions show, works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import programs, with_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@with_names
def test_the_thirty_lines_run_and_the_loss_falls() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert block.count("\n") <= 36
    printed: list[list[float]] = []
    names = {"__name__": "__main__", "print": printed.append}
    exec(compile(block, "README.md", "exec"), names)
    assert len(printed[0]) == 2
    assert max(printed[0]) < 1e-3


def test_the_answers_run_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    (answer,) = programs(ROOT / "docs" / "faq.md")
    exec(compile(answer, "faq.md", "exec"), {"__name__": "__main__"})

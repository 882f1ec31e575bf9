"""What the page for users of TensorFlow shows, works."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem import config
from tests.pages import with_names

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "migrating-from-tensorflow.md").read_text()
# A title, and the programs on the right side of the tables under it; those on the left are marked
# "py".
PROGRAMS = {
    title: blocks
    for title, text in re.findall(r"^##+ (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.M)
    if (blocks := re.findall(r"```python\n(.*?)```", text, re.DOTALL))
}
FIRST = next(iter(PROGRAMS))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with warnings.catch_warnings():
        yield
    config.set_logical_cpus(1)


@with_names
@pytest.mark.parametrize("title", PROGRAMS)
def test_the_programs_run(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    start, program = *PROGRAMS[FIRST], PROGRAMS[title][-1]
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(start, f"{FIRST}, the first block", "exec"), names)
    exec(compile(program, title, "exec"), names)


def test_every_strategy_has_a_program() -> None:
    shown = "\n".join(block for blocks in PROGRAMS.values() for block in blocks)
    for name in (
        "get_strategy",
        "OneDeviceStrategy",
        "MirroredStrategy",
        "CentralStorageStrategy",
        "MultiWorkerMirroredStrategy",
        "ParameterServerStrategy",
        "contrib.MirroredStrategy",
    ):
        assert f"stratagem.{name}(" in shown


def test_each_program_stands_beside_one_of_tensorflow() -> None:
    assert all(len(blocks) == 1 for blocks in PROGRAMS.values())
    assert PAGE.count("```py\n") == len(PROGRAMS) > 10

"""The pages that follow a request file by file name files that it passes."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from types import FrameType

import pytest
import torch

import stratagem
from stratagem import DistributedOptimizer
from tests.client.clusters import running
from tests.client.coordinator.coordination import coordinating
from tests.pages import ROOT
from tests.waiting import eventually

# What one reads of a walk, by page.
MOST_FILES = {"one-push": 14, "one-scheduled-function": 40}


class Passed:
    """The files of which functions are called, in threads that start afterwards too.

    Attributes:
        files: Their paths in the tree, while `is_on`.
        is_on: Whether calls are noted.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call":
            self.files.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))

    def missed(self, named: set[str]) -> set[str]:
        """Return which of some files, named by the ends of their paths, are none."""
        ends = {f"/{file}" for file in self.files}
        return {name for name in named if not any(end.endswith(f"/{name}") for end in ends)}


@contextmanager
def profiling() -> Iterator[Passed]:
    passed, earlier = Passed(), sys.getprofile()
    threading.setprofile(passed.note)
    sys.setprofile(passed.note)
    try:
        yield passed
    finally:
        sys.setprofile(earlier)
        threading.setprofile(earlier)


def steps(page: str) -> set[str]:
    """Return the files that the numbered steps of a page name."""
    text = (ROOT / "docs" / "architecture" / f"{page}.md").read_text(encoding="utf-8")
    numbered = re.findall(r"^\d+\. .*\n(?: {3,}.*\n)*", text, re.MULTILINE)
    return {name for step in numbered for name in re.findall(r"`([\w/]+\.py)`", step)}


@pytest.mark.parametrize("page", MOST_FILES)
def test_a_walk_is_short_enough_to_be_read(page: str) -> None:
    assert 10 < len(steps(page)) <= MOST_FILES[page]


def in_a_fresh_process(work: Callable[[], set[str]]) -> set[str]:
    """What a function returns where no thread runs yet, which would not be profiled."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work).result(timeout=100)


def missed_by_a_push() -> set[str]:
    with (
        profiling() as passed,
        running(num_servers=1) as cluster,
        cluster.strategy() as strategy,
    ):
        with strategy.scope():
            model = torch.nn.Linear(3, 4)
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))

        def step(is_watched: bool) -> None:
            optimizer.zero_grad()
            model(torch.ones(3)).sum().backward()
            passed.is_on = is_watched
            optimizer.step()
            passed.is_on = False

        for is_watched in (False, False, False, True):
            strategy.run(step, (is_watched,))
    return passed.missed(steps("one-push"))


def missed_by_a_scheduled_function() -> set[str]:
    with profiling() as passed, coordinating() as coordination:
        with coordination.strategy.scope():
            variable = stratagem.Variable(torch.zeros(2))

        def add(value: torch.Tensor) -> int:
            variable.assign_add(value)
            return 1

        passed.is_on = True
        result = coordination.coordinator.schedule(add, args=(torch.ones(2),))
        assert result.fetch() == 1
        named = steps("one-scheduled-function")
        # Servers are told of ends by a thread of its own.
        with suppress(AssertionError):
            eventually(lambda: not passed.missed(named), seconds=20)
    return passed.missed(named)


def test_a_push_passes_each_file_of_its_walk() -> None:
    assert not in_a_fresh_process(missed_by_a_push)


@pytest.mark.full("the walk of a push stands for both")
def test_a_scheduled_function_passes_each_file_of_its_walk() -> None:
    assert not in_a_fresh_process(missed_by_a_scheduled_function)

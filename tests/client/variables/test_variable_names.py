"""Names of variables are unique while the variables live."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    CentralStorageStrategy,
    InvalidNameError,
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    Variable,
)


@pytest.fixture
def strategy() -> OneDeviceStrategy:
    return OneDeviceStrategy("CPU:0")


@contextmanager
def collections() -> Iterator[list[str]]:
    """The collections of garbage that the block asks for."""
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        found.append(phase)

    gc.disable()
    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def in_a_cycle(name: str) -> str:
    """Make a variable that only a collection of garbage can free; its name."""
    variable = Variable(0.0, name=name)
    cycle: list[object] = [variable]
    cycle.append(cycle)
    return variable.name


def test_a_name_is_free_again_in_the_next_scope(strategy: OneDeviceStrategy) -> None:
    made = []
    for _ in range(3):
        with strategy.scope():
            made.append(in_a_cycle("v"))
    assert made == ["v", "v", "v"]


def test_what_lives_keeps_its_name(strategy: OneDeviceStrategy) -> None:
    with strategy.scope():
        kept = [Variable(0.0, name="v"), Variable(0.0, name="v")]
    del kept[0]
    with strategy.scope():
        kept += [Variable(0.0, name="v"), Variable(0.0, name="v")]
    assert [variable.name for variable in kept] == ["v_1", "v", "v_2"]


def test_a_suffixed_name_may_be_taken_already(strategy: OneDeviceStrategy) -> None:
    with strategy.scope():
        kept = [Variable(0.0, name=name) for name in ("v", "v_1", "v", "v")]
    assert [variable.name for variable in kept] == ["v", "v_1", "v_2", "v_3"]


def test_many_equal_names_cost_one_collection_of_garbage(
    strategy: OneDeviceStrategy,
) -> None:
    with collections() as found, strategy.scope():
        kept = [stratagem.Variable(0.0) for _ in range(100)]
    assert len({variable.name for variable in kept}) == 100
    assert found.count("start") <= 1


def test_a_name_that_nobody_uses_needs_no_collection_of_garbage(
    strategy: OneDeviceStrategy,
) -> None:
    kept = None
    with collections() as found:
        for _ in range(20):
            with strategy.scope():
                kept = Variable(0.0, name="v")
    assert kept is not None
    assert kept.name in ("v", "v_1")
    assert found.count("start") <= 5


def test_names_of_what_lives_cost_few_collections_of_garbage(
    strategy: OneDeviceStrategy,
) -> None:
    kept = []
    with collections() as found:
        for _ in range(100):
            with strategy.scope():
                kept.append(Variable(0.0, name="v"))
    assert len({variable.name for variable in kept}) == 100
    assert found.count("start") <= 10


def test_names_do_not_depend_on_when_garbage_is_collected() -> None:
    """A worker that happens to collect comes to the names of one that does not."""
    made = []
    for collects in (False, True):
        strategy, names = OneDeviceStrategy("CPU:0"), []
        with strategy.scope():
            kept = [Variable(0.0, name="v")]
        for number in range(12):
            with collections(), strategy.scope():
                names.append(in_a_cycle("v" if number % 2 else "w"))
                kept.append(Variable(0.0, name="v"))
                if collects:
                    gc.collect()
        made.append(names + [variable.name for variable in kept])
    assert made[0] == made[1]


# Python drops it if callbacks of collections are written in Python, as those of some packages of
# tests are.
_INTERRUPTED = """
import gc, signal, time
import stratagem

signal.signal(signal.SIGALRM, signal.default_int_handler)
heap = [[number] for number in range(1_000_000)]
for _ in range(5):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            gc.collect()
        raise SystemExit("the interrupt was lost")
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.full("interrupts have tests of their own in tests/worker")
def test_an_interrupt_that_comes_during_a_collection_is_raised() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", _INTERRUPTED], env=environment, check=True, timeout=100)


# Ids of their own, since processes of the tests cannot send half of a surrogate pair to each other.
@pytest.mark.parametrize(
    "name",
    ["user id", "größe", "名前", "a\nb", "a\ud800", "x" * 513],
    ids=["space", "umlaut", "kanji", "line break", "surrogate", "long"],
)
@pytest.mark.parametrize("kind", [MirroredStrategy, CentralStorageStrategy])
def test_names_that_servers_refuse_are_refused_everywhere(
    kind: Callable[[list[str]], Strategy], name: str
) -> None:
    strategy = kind(["CPU:0"])
    with strategy.scope(), pytest.raises(InvalidNameError, match="variable name"):
        Variable(1.0, name=name)
    with pytest.raises(InvalidNameError, match="variable name"), strategy.scope():
        kept = nn.ParameterDict({name: torch.ones(1)})
    assert kept[name] == 1.0

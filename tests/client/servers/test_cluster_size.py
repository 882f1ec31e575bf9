"""Servers refuse programs that place variables over another number of them than was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratagem import ParameterServerStrategy, Variable
from stratagem_proto.errors import FailedPreconditionError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN

_REFUSED = r"/job:ps/task:0 has its part of variables .* {was} parameter servers.* has {now}\. "


@contextmanager
def started(number: int, **settings: Any) -> Iterator[Sequence[str]]:
    """The addresses of so many servers, which know of none of the others."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ParameterServer(ServerSettings(task=task, token=TOKEN, **settings))
            ).address
            for task in range(number)
        ]


def counted(strategy: ParameterServerStrategy) -> list[float]:
    """What three counters have once each has been added to."""
    with strategy.scope():
        counters = [Variable(0.0, name=f"counter{each}") for each in range(3)]
    for counter in counters:
        counter.assign_add(1.0)
    return [float(counter.numpy()) for counter in counters]


def refused(addresses: Sequence[str], was: int) -> None:
    """See that a program is refused, which has another number of servers than there was."""
    match = _REFUSED.format(was=was, now=len(addresses))
    denied = pytest.raises(FailedPreconditionError, match=match)
    with Cluster(addresses, 1).strategy() as strategy, denied:
        counted(strategy)


@pytest.mark.parametrize("other", [1, 3])
def test_the_checkpoint_of_another_number_is_refused_and_that_of_as_many_is_not(
    other: int, tmp_path: Path
) -> None:
    with started(2) as addresses, Cluster(addresses, 1).strategy() as strategy:
        counted(strategy)
        strategy.save(tmp_path)
    with started(min(other, 2), restore=str(tmp_path)) as addresses, started(3) as more:
        refused([*addresses, *more[2:]] if other == 3 else addresses, was=2)
    restored = started(2, restore=str(tmp_path))
    with restored as addresses, Cluster(addresses, 1).strategy() as strategy:
        assert counted(strategy) == [2.0] * 3


@pytest.mark.parametrize("durability", ["log", "snapshot"])
def test_the_folder_of_another_number_is_refused(durability: str, tmp_path: Path) -> None:
    kept = {"durability": durability, "durability_folder": str(tmp_path)}
    with started(2, **kept) as addresses, Cluster(addresses, 1).strategy() as strategy:
        counted(strategy)
    with started(1, **kept) as addresses:
        refused(addresses, was=2)
    with started(2, **kept) as addresses, Cluster(addresses, 1).strategy() as strategy:
        assert counted(strategy) == [2.0] * 3


def test_a_worker_with_another_list_of_servers_is_refused() -> None:
    with started(2) as addresses, Cluster(addresses, 2).strategy() as chief:
        counted(chief)
        denied = pytest.raises(FailedPreconditionError, match=_REFUSED.format(was=2, now=1))
        with Cluster(addresses[:1], 2).strategy(1) as worker, denied:
            counted(worker)


def test_servers_without_variables_take_any_number() -> None:
    with started(3) as addresses:
        with Cluster(addresses[:1], 1).strategy() as strategy:
            strategy.barrier("meeting")
        with Cluster(addresses, 1).strategy() as strategy:
            assert counted(strategy) == [1.0] * 3

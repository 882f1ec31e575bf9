"""The thread that reads ahead of what is asked for."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from stratagem import InputOptions
from stratagem._input.reader import ReadAhead
from stratagem_deploy.processes.process import import_path
from tests.client.batches import batches, shares
from tests.client.two_replicas import TwoReplicas
from tests.waiting import eventually


class Numbers(Iterator[int]):
    """Numbers from 0, which notes the threads that read it; some reads fail."""

    def __init__(self, end: int = 1 << 30, failing: tuple[int, ...] = ()) -> None:
        self.read: list[threading.Thread] = []
        self._end = end
        self._failing = failing

    def have_been_read(self, count: int) -> bool:
        return len(self.read) == count

    def __next__(self) -> int:
        number = len(self.read)
        if number == self._end:
            raise StopIteration
        self.read.append(threading.current_thread())
        if number in self._failing:
            raise ZeroDivisionError(number)
        return number


def test_items_come_in_their_order_and_end_for_good() -> None:
    ahead = ReadAhead(Numbers(100), 3)
    assert list(ahead) == list(range(100))
    assert list(ahead) == []


def test_a_thread_reads_as_far_ahead_as_told_and_no_further() -> None:
    numbers = Numbers()
    ahead = ReadAhead(numbers, 3)
    assert numbers.read == []
    for taken in range(1, 5):
        assert next(ahead) == taken - 1
        eventually(partial(numbers.have_been_read, taken + 3))
    assert set(numbers.read) == {numbers.read[0]}
    assert numbers.read[0] is not threading.current_thread()
    # It would read on if it could: the place of a taken item is what it waits for.
    assert len(numbers.read) == 7


def test_errors_come_in_their_turn_and_items_after_them() -> None:
    ahead = ReadAhead(Numbers(4, failing=(1, 2)), 2)
    assert next(ahead) == 0
    for number in (1, 2):
        with pytest.raises(ZeroDivisionError, match=str(number)):
            next(ahead)
    assert list(ahead) == [3]


def test_a_thread_stops_when_nobody_will_ask_again() -> None:
    numbers = Numbers()
    ahead = ReadAhead(numbers, 2)
    next(ahead)
    (thread,) = set(numbers.read)
    del ahead
    gc.collect()
    eventually(lambda: not thread.is_alive())
    assert len(numbers.read) <= 3


def test_the_thread_works_in_the_modes_of_its_maker() -> None:
    """RUN-3: for instance without recording gradients."""
    weight = torch.ones(1, requires_grad=True)

    def elements() -> Iterator[torch.Tensor]:
        while True:
            yield weight * 2

    with torch.no_grad():
        ahead = ReadAhead(elements(), 1)
    assert not next(ahead).requires_grad
    assert next(ReadAhead(elements(), 1)).requires_grad


def test_a_dataset_is_read_ahead_if_asked_for_or_worthwhile() -> None:
    """INP-30, INP-37: on CPUs alone only where options say so."""
    threads: list[threading.Thread] = []

    def elements() -> Iterator[torch.Tensor]:
        while True:
            threads.append(threading.current_thread())
            yield torch.arange(2)

    strategy, here = TwoReplicas(), threading.current_thread()
    plain = iter(strategy.experimental_distribute_dataset(elements))
    next(plain), next(plain)
    assert threads == [here, here]
    options = InputOptions(experimental_per_replica_buffer_size=2)
    ahead = iter(strategy.experimental_distribute_dataset(elements, options))
    assert shares(next(ahead)) == [[0], [1]]
    eventually(lambda: len(threads) == 2 + 3)
    assert here not in threads[2:]
    del ahead
    gc.collect()
    eventually(lambda: not threads[-1].is_alive())


def test_errors_of_a_dataset_reach_the_training_loop() -> None:
    def elements() -> Iterator[torch.Tensor]:
        yield torch.arange(2)
        raise ZeroDivisionError("in the dataset")

    strategy = TwoReplicas()
    iterator = iter(strategy.experimental_distribute_dataset(elements, InputOptions()))
    assert shares(next(iterator)) == [[0], [1]]
    with pytest.raises(ZeroDivisionError, match="in the dataset"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_seeded_loop_on_cpus_draws_what_a_plain_one_draws() -> None:
    """Shuffling and dropout take turns at torch's one generator."""

    def drawn(dataset: Iterable[Any]) -> list[float]:
        torch.manual_seed(3)
        draws = []
        for _ in range(2):
            for _ in dataset:
                draws.append(torch.rand(()).item())
        return draws

    loader = batches(8, 2, shuffle=True)
    assert drawn(TwoReplicas().experimental_distribute_dataset(loader)) == drawn(loader)


_UNFINISHED = """
import torch
from stratagem._input.reader import ReadAhead

def elements():
    while True:
        yield torch.ones(1000).cumsum(0)

ahead = ReadAhead(elements(), 100)
print(float(next(ahead)[-1]))
"""


@pytest.mark.full("threads that read ahead are daemons, which another test sees")
def test_a_program_ends_while_its_data_do_not() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _UNFINISHED],
        env=import_path(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1000.0\n", "")

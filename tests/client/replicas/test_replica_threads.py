"""Replicas that overlap, are compiled, or belong to a forked process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor
from typing import Any

import pytest
import torch

import stratagem
from stratagem import PerReplica, RunOptions
from tests.client.two_replicas import TwoReplicas, number

STRUCTURE = "make every replica return, or pass on, values of the same structure"


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def replica() -> stratagem.ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


class Trouble(Exception):
    pass


def test_results_of_different_structure_are_refused(strategy: TwoReplicas) -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match=STRUCTURE):
        strategy.run(lambda: [0] * (number() + 1))


def test_replicas_overlap_where_they_may(strategy: TwoReplicas) -> None:
    meeting = threading.Barrier(2, timeout=60)
    together = RunOptions(run_concurrently=True)

    def fn() -> Any:
        meeting.wait()
        return replica().merge_call(lambda s, x: s.reduce("sum", x), (number() + 1,))

    assert strategy.run(fn, options=together) == 3


def test_concurrent_replicas_wait_for_the_first_to_create_a_variable(
    strategy: TwoReplicas,
) -> None:
    other_is_on_its_way = threading.Event()

    def fn() -> stratagem.Variable:
        if number() == 0:
            assert other_is_on_its_way.wait(60)
        other_is_on_its_way.set()
        return stratagem.Variable(number() + 1.0)

    variable = strategy.run(fn, options=RunOptions(run_concurrently=True))
    assert variable.numpy() == 1.0


def test_concurrent_replicas_do_not_wait_for_what_the_first_never_creates(
    strategy: TwoReplicas,
) -> None:
    def fn() -> None:
        if number() == 1:
            stratagem.Variable(1.0)

    with pytest.raises(RuntimeError, match="mismatching name"):
        strategy.run(fn, options=RunOptions(run_concurrently=True))


def test_concurrent_replicas_stop_when_one_fails(strategy: TwoReplicas) -> None:
    def fn() -> None:
        if number() == 1:
            raise Trouble
        replica().merge_call(lambda strategy: None)

    with pytest.raises(Trouble):
        strategy.run(fn, options=RunOptions(run_concurrently=True))


def numbers_in_a_forked_child() -> bool:
    """Whether they are those of two replicas."""
    strategy = TwoReplicas()
    strategy.run(number)
    child = os.fork()
    if child == 0:
        right = strategy.run(number).values == (0, 1)
        os._exit(0 if right else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.full("forked children have tests in tests/client/servers")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_replicas_run_in_a_forked_child(forking: Executor) -> None:
    assert forking.submit(numbers_in_a_forked_child).result(timeout=60)


@pytest.mark.full("a compiled model has what its steps made")
def test_a_compiled_function_runs_in_each_replica_and_merges(
    strategy: TwoReplicas,
) -> None:
    @torch.compile(backend="eager")
    def fn(x: torch.Tensor) -> torch.Tensor:
        merged: torch.Tensor = replica().merge_call(lambda s, v: s.reduce("sum", v), (x * 2,))
        return merged + x

    inputs = PerReplica((torch.tensor(1.0), torch.tensor(2.0)))
    assert strategy.run(fn, (inputs,)).values == (7.0, 8.0)


def test_replicas_split_kernels_as_their_program_does(strategy: TwoReplicas) -> None:
    """However old the threads are that they meet: batch normalization rounds by it."""
    before, met = torch.get_num_threads(), []
    try:
        for count in (before, before + 1, before + 2, 1):
            torch.set_num_threads(count)
            strategy.run(lambda: met.append(torch.get_num_threads()))
            assert met[-2:] == [count, count] == [torch.get_num_threads()] * 2
    finally:
        torch.set_num_threads(before)

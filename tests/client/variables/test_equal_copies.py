"""Copies of a mirrored variable are equal, or the write that would part them is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stratagem
from stratagem import (
    CentralStorageStrategy,
    ContextError,
    InvalidArgumentError,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    PerReplica,
    Strategy,
    VariableAggregation,
)
from tests.client.clusters import running
from tests.client.variables.drawn_writes import Write, counted, made
from tests.full import examples

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1"]
SUM, NONE = VariableAggregation.SUM, VariableAggregation.NONE

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "mirrored": lambda: MirroredStrategy(DEVICES),
    "workers": MultiWorkerMirroredStrategy,
    "central": lambda: CentralStorageStrategy(DEVICES),
    "one device": lambda: OneDeviceStrategy("CPU:1"),
    "default": stratagem.get_strategy,
}


@pytest.fixture(scope="module")
def servers() -> Iterator[ParameterServerStrategy]:
    with running(1) as cluster, cluster.strategy() as strategy:
        yield strategy


def stays_equal(strategy: Strategy, draw: random.Random, on_read: bool = True) -> None:
    write = Write(strategy, draw, on_read)
    before = write.copies()
    refusal = write.attempt()
    first, *others = write.copies()
    assert all(torch.equal(first, other) for other in others), (write, refusal)
    if refusal is not None and not write.way.startswith("update"):
        assert torch.equal(first, before[0]), (write, refusal)


@pytest.mark.spec("VWR-24")
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(40), deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_copies_stay_equal_or_the_write_is_refused(name: str, draw: random.Random) -> None:
    stays_equal(STRATEGIES[name](), draw)


@settings(max_examples=examples(40), deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_a_server_takes_the_write_or_refuses_it(
    servers: ParameterServerStrategy, draw: random.Random
) -> None:
    # A server has one copy for all replicas, so that none is synchronized ON_READ.
    stays_equal(servers, draw, on_read=False)


@pytest.mark.spec("VWR-24")
@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [(SUM, 3.0), (VariableAggregation.MEAN, 1.5), (VariableAggregation.ONLY_FIRST_REPLICA, 1.0)],
)
def test_what_replicas_have_counted_is_read_as_one(
    aggregation: VariableAggregation, expected: float
) -> None:
    strategy = MirroredStrategy(DEVICES)
    variable, counts = made(strategy, 0.0), counted(strategy, aggregation)
    for write in (variable.assign, variable.assign_sub, variable.assign_add):
        write(counts)
        for copy in variable.values:
            assert torch.equal(
                copy.read_value(), counts.read_value() * (write != variable.assign_sub)
            )
    assert counts.read_value()[0, 0] == expected


def test_without_an_aggregation_there_is_nothing_to_read() -> None:
    strategy = MirroredStrategy(DEVICES)
    with pytest.raises(InvalidArgumentError, match="Could not convert from"):
        made(strategy, 0.0).assign(counted(strategy, NONE))


@pytest.mark.parametrize("kind", [MirroredStrategy, CentralStorageStrategy])
def test_what_replicas_of_another_strategy_have_counted_is_theirs(
    kind: Callable[[list[str]], Strategy],
) -> None:
    strategy, counts = kind(DEVICES), counted(MirroredStrategy(DEVICES), SUM)
    variable = made(strategy, 1.0, aggregation=SUM)
    writes: list[Callable[[], object]] = [
        lambda: variable.assign(counts),
        lambda: strategy.run(lambda: variable.assign(counts)),
        lambda: strategy.extended.update(variable, lambda v, x: v.assign(x), args=(counts,)),
        lambda: strategy.extended.update(variable, lambda v: v.assign(counts)),
    ]
    for write in writes:
        with pytest.raises(ContextError, match="Mixing different"):
            write()
    assert all(
        torch.equal(copy.read_value(), made(strategy, 1.0).read_value()) for copy in variable.values
    )


def test_an_update_is_given_no_variable_whose_copies_differ() -> None:
    for strategy in (MirroredStrategy(DEVICES), CentralStorageStrategy(DEVICES)):
        counts = counted(strategy, SUM)
        with pytest.raises(
            InvalidArgumentError, match=r"ON_READ: its copies differ.*pass its read_value\(\)"
        ):
            strategy.extended.update(
                made(strategy, 1.0, name="v"), lambda v, x: v.assign(x), args=(counts,)
            )


def test_an_update_of_the_only_copy_reads_what_all_replicas_have_counted() -> None:
    strategy = CentralStorageStrategy(DEVICES)
    counts, variable = counted(strategy, SUM), made(strategy, 1.0)
    strategy.extended.update(variable, lambda v: v.assign(counts))
    assert torch.equal(variable.read_value(), counts.read_value())
    strategy.extended.update(counts, lambda v: v.assign(torch.ones(2, 2)))
    assert torch.equal(counts.read_value(), torch.full((2, 2), 2.0))


def test_an_update_that_fails_in_the_midst_leaves_equal_copies() -> None:
    strategy = MirroredStrategy(DEVICES)
    variable, left = made(strategy, 1.0), [1]

    def fn(v: stratagem.Variable) -> None:
        v.assign_add(torch.ones(2, 2) / left.pop())

    with pytest.raises(IndexError):
        strategy.extended.update(variable, fn)
    first, second = variable.values
    assert torch.equal(first.read_value(), second.read_value())


@pytest.mark.spec("VWR-24")
def test_gradients_that_were_not_reduced_part_no_copies() -> None:
    strategy = MirroredStrategy(DEVICES)
    variable = made(strategy, 0.0)

    def fn(x: float) -> None:
        strategy.extended.update(variable, lambda v, x: v.assign(torch.full((2, 2), x)), (x,))

    with pytest.raises(InvalidArgumentError, match="Combine it by reduce_to"):
        strategy.run(fn, (PerReplica([1.0, 2.0]),))
    assert [copy.read_value()[0, 0].item() for copy in variable.values] == [1.0, 1.0]


def test_replicas_get_values_of_their_own_strategy() -> None:
    for strategy in (MirroredStrategy(DEVICES), OneDeviceStrategy("CPU:1")):
        with pytest.raises(InvalidArgumentError, match=r"3 components.*another number of replicas"):
            strategy.run(lambda x: x, (PerReplica([1, 2, 3]),))

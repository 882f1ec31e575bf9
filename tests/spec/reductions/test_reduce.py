"""Sums and means over replicas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from tests.client.two_replicas import TwoReplicas

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1"]
KINDS: dict[str, Callable[[], Strategy]] = {
    "mirrored": partial(MirroredStrategy, DEVICES),
    "central": partial(CentralStorageStrategy, DEVICES),
    "written by a user": TwoReplicas,
}


@pytest.fixture(params=KINDS)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return KINDS[request.param]()


def per_replica(*values: Any) -> PerReplica:
    return PerReplica([torch.tensor(value) for value in values])


@pytest.mark.spec("RED-1")
def test_without_an_axis_replicas_alone_are_reduced(strategy: Strategy) -> None:
    """As in the V1 classes and in 1.13, the axis may be left out."""
    value = per_replica([1.0, 2.0], [3.0, 5.0])
    assert strategy.reduce("sum", value).tolist() == [4.0, 7.0]


@pytest.mark.spec("RED-5")
def test_sums_are_taken_in_replica_order() -> None:
    """((a + b) + c), so that the bytes do not depend on chance."""
    big, small = torch.tensor(1e8), torch.tensor(1.0)
    for three in (TwoReplicas(replicas=3), MirroredStrategy([*DEVICES, "CPU:2"])):
        assert three.reduce("sum", PerReplica((big, -big, small))) == 1.0
        assert three.reduce("sum", PerReplica((small, big, -big))) == 0.0


@pytest.mark.spec("RED-6")
def test_shapes_that_differ_are_not_broadcast(strategy: Strategy) -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match=r"\(1,\), \(2,\)"):
        strategy.reduce("sum", per_replica([1.0], [1.0, 2.0]))


@pytest.mark.spec("RED-7")
@pytest.mark.parametrize("axis", [None, 0])
def test_a_mean_of_integers_may_have_a_sum_that_does_not_fit_them(
    strategy: Strategy, axis: int | None
) -> None:
    value = PerReplica([torch.tensor([200], dtype=torch.uint8)] * 2)
    assert strategy.reduce("mean", value, axis).item() == 200


@pytest.mark.spec("RED-5", "RED-7")
@pytest.mark.parametrize("axis", [None, 0])
def test_of_flags_those_that_are_set_are_counted(strategy: Strategy, axis: int | None) -> None:
    value = per_replica([True], [True])
    assert strategy.reduce("sum", value, axis).item() == 2
    assert strategy.reduce("mean", value, axis).item() == 1


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        pytest.param("sum", 15.0, marks=pytest.mark.spec("RED-8")),
        pytest.param("mean", 2.5, marks=pytest.mark.spec("RED-9")),
    ],
)
@pytest.mark.parametrize(
    "axis",
    [
        0,
        pytest.param(-1, marks=pytest.mark.spec("RED-10")),
        pytest.param((0,), marks=pytest.mark.spec("RED-12")),
        pytest.param([0], marks=pytest.mark.spec("RED-13")),
    ],
)
def test_uneven_replicas_are_weighted_by_their_size(
    strategy: Strategy, op: str, expected: float, axis: Any
) -> None:
    """A list of axes is a tuple of axes (ODD-7)."""
    value = per_replica([0.0, 1.0, 2.0, 3.0], [4.0, 5.0])
    assert strategy.reduce(op, value, axis=axis) == expected


@pytest.mark.spec("RED-12")
def test_several_axes_are_reduced_together(strategy: Strategy) -> None:
    value = per_replica([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]])
    reduce = strategy.reduce
    assert reduce("mean", value, axis=(0, 1)) == 4.5
    assert reduce("sum", value, axis=(0, 1)) == 36.0
    assert reduce("mean", value, axis=0).tolist() == [4.0, 5.0]
    assert reduce("mean", value, axis=()).tolist() == [[3.0, 4.0], [5.0, 6.0]]


@pytest.mark.spec("RED-11")
@pytest.mark.parametrize("axis", [1, -2, (0, 1)])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_an_axis_that_does_not_exist_is_refused(strategy: Strategy, op: str, axis: Any) -> None:
    with pytest.raises(ValueError, match="out of range for a value of rank 1"):
        strategy.reduce(op, per_replica([1.0], [2.0]), axis=axis)


@pytest.mark.spec("RED-15")
@pytest.mark.parametrize("value", [1.5, "text", None, torch.tensor(0.5)])
def test_the_mean_of_a_plain_value_is_itself(strategy: Strategy, value: Any) -> None:
    assert strategy.reduce("mean", value) is value


@pytest.mark.spec("RED-18")
@pytest.mark.parametrize("zero", [0, 0.0, torch.tensor(0.0)])
def test_zero_is_a_plain_value_like_any_other(strategy: Strategy, zero: Any) -> None:
    """ODD-6."""
    assert strategy.reduce("mean", zero) is zero
    with pytest.raises(ValueError, match="non-DistributedValues"):
        strategy.reduce("sum", zero)


@pytest.mark.spec("RED-20")
def test_nests_are_reduced_leaf_by_leaf(strategy: Strategy) -> None:
    """ODD-8: under every strategy."""
    nest = {"a": (per_replica(1.0, 2.0),), "b": [PerReplica((3, 4))]}
    assert strategy.reduce("sum", nest) == {"a": (3.0,), "b": [7]}
    rows = {"a": per_replica([1.0], [2.0, 3.0])}
    assert strategy.reduce("mean", rows, axis=0) == {"a": 2.0}


@pytest.mark.spec("RED-21")
def test_equal_copies_have_a_mean_but_no_sum_where_they_are_copies() -> None:
    strategy = MirroredStrategy(DEVICES)
    with strategy.scope():
        variable = Variable(3.0)
    for value in (variable, Mirrored((torch.tensor(3.0), torch.tensor(3.0)))):
        assert strategy.reduce("mean", value) is value.values[0]
        assert strategy.extended.reduce_to("mean", value, "CPU:0") is value
        with pytest.raises(ValueError, match="copies are equal by definition"):
            strategy.reduce("sum", value)


@pytest.mark.spec("RED-22")
def test_copies_that_differ_are_reduced_as_asked(strategy: Strategy) -> None:
    """Whatever the variable's own aggregation; one copy alone is a plain value."""
    with strategy.scope():
        variable = Variable(
            2.0,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )
    if len(variable.values) == 1:
        assert strategy.reduce("mean", variable) is variable
        with pytest.raises(ValueError, match="non-DistributedValues"):
            strategy.reduce("sum", variable)
        return
    strategy.run(lambda x: variable.assign_add(x), (PerReplica((1.0, 5.0)),))
    assert strategy.reduce("sum", variable) == 10.0
    assert strategy.reduce("mean", variable) == 5.0


@pytest.mark.spec("RED-24")
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_one_replica_gets_back_what_it_has(op: str) -> None:
    for strategy in (stratagem.get_strategy(), OneDeviceStrategy("CPU:0")):
        for value in ({"a": [3, torch.ones(2)]}, "text", 0):
            assert strategy.reduce(op, value) is value


@pytest.mark.spec("RED-25")
def test_a_replica_cannot_reduce(strategy: Strategy) -> None:
    with pytest.raises(RuntimeError, match=r"all_reduce|cross-replica"):
        strategy.run(lambda: strategy.reduce("mean", 1.0))


@pytest.mark.spec("RED-27")
def test_a_failed_reduction_leaves_later_ones_alone(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match="differ between replicas"):
        strategy.reduce("sum", per_replica([1.0], [1.0, 2.0]))
    assert strategy.reduce("sum", per_replica(1.0, 2.0)) == 3.0


def test_a_replica_that_had_no_data_is_named(strategy: Strategy) -> None:
    """Its part may be anything, such as the mean of nothing."""
    means = strategy.run(lambda rows: rows.mean(), (PerReplica((torch.ones(2), torch.ones(0))),))
    with pytest.warns(UserWarning, match="replica 1 returned without .* axis=0"):
        assert strategy.reduce("mean", {"loss": means})["loss"].isnan()


def test_rows_are_reduced_without_a_warning(strategy: Strategy) -> None:
    short, full = PerReplica((torch.ones(2), torch.ones(0))), per_replica([1.0], [3.0])
    kept = strategy.run(lambda rows: rows * 2, (short,))
    assert strategy.reduce("mean", kept, axis=0) == 2.0
    assert strategy.reduce("mean", strategy.run(lambda x: x.sum(), (full,))) == 2.0

"""Reducing to, and copying to, devices of one's choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    Mirrored,
    MirroredStrategy,
    NcclAllReduce,
    OneDeviceStrategy,
    PerReplica,
    ReductionToOneDevice,
    Strategy,
    Variable,
    VariableAggregation,
)

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1"]
CENTRAL = partial(CentralStorageStrategy, DEVICES)
KINDS: dict[str, Callable[[], Strategy]] = {
    "central": CENTRAL,
    "reduced on one device": partial(MirroredStrategy, DEVICES, ReductionToOneDevice()),
    "reduced in pairs": partial(MirroredStrategy, DEVICES, HierarchicalCopyAllReduce()),
    "reduced by NCCL": partial(MirroredStrategy, DEVICES, NcclAllReduce(num_packs=2)),
}


@pytest.fixture(params=KINDS)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return KINDS[request.param]()


def per_replica(*values: Any) -> PerReplica:
    return PerReplica([torch.tensor(value) for value in values])


def variable_of(strategy: Strategy) -> Variable:
    with strategy.scope():
        return Variable(1.0)


@pytest.mark.spec("EXT-1")
@pytest.mark.parametrize("op", ["mean", "MEAN", VariableAggregation.MEAN])
def test_a_device_gets_one_tensor(strategy: Strategy, op: Any) -> None:
    """An aggregation names a reduction, too."""
    mean = strategy.extended.reduce_to(op, per_replica(1.0, 2.0), "CPU:1")
    assert isinstance(mean, torch.Tensor)
    assert mean == 1.5


@pytest.mark.spec("EXT-1")
def test_a_distributed_value_gets_a_copy_for_each_component(strategy: Strategy) -> None:
    value = per_replica([1.0], [2.0])
    result = strategy.extended.reduce_to("sum", value, value)
    assert isinstance(result, Mirrored)
    first, second = result.values
    assert first.tolist() == second.tolist() == [3.0]
    assert first.data_ptr() != second.data_ptr()
    assert [part.tolist() for part in value.values] == [[1.0], [2.0]]


@pytest.mark.spec("EXT-1")
def test_a_variable_gets_a_value_for_each_copy(strategy: Strategy) -> None:
    variable = variable_of(strategy)
    value = per_replica(1.0, 2.0)
    result = strategy.extended.reduce_to("sum", value, variable)
    kind = torch.Tensor if len(variable.values) == 1 else Mirrored
    assert isinstance(result, kind)
    assert result == 3.0


@pytest.mark.spec("EXT-1")
@pytest.mark.parametrize("destinations", [None, ["CPU:0"], ("CPU:0",)])
def test_destinations_are_one_thing(strategy: Strategy, destinations: Any) -> None:
    value = per_replica(1.0, 2.0)
    with pytest.raises(ValueError, match="destinations must be one"):
        strategy.extended.reduce_to("sum", value, destinations)


@pytest.mark.spec("EXT-1")
@pytest.mark.parametrize("op", ["max", 3, VariableAggregation.NONE])
def test_only_sums_and_means_are_reductions(strategy: Strategy, op: Any) -> None:
    with pytest.raises(ValueError, match="ReduceOp"):
        strategy.extended.reduce_to(op, per_replica(1.0, 2.0), "CPU:0")


@pytest.mark.spec("EXT-1")
def test_a_replica_cannot_reduce_to_anything(strategy: Strategy) -> None:
    with pytest.raises(stratagem.ContextError, match="reduce_to"):
        strategy.run(lambda: strategy.extended.reduce_to("sum", 1.0, "CPU:0"))


@pytest.mark.spec("EXT-1")
def test_plain_values_are_reduced_as_by_reduce(strategy: Strategy) -> None:
    reduce_to, plain = strategy.extended.reduce_to, torch.tensor(4.0)
    assert reduce_to("mean", plain, "CPU:0") == 4.0
    with pytest.raises(ValueError, match="non-DistributedValues"):
        reduce_to("sum", plain, "CPU:0")
    assert OneDeviceStrategy("CPU:0").extended.reduce_to("sum", plain, "CPU:0") == 4.0


@pytest.mark.spec("EXT-1", "RED-15")
def test_the_mean_of_a_plain_value_is_itself(strategy: Strategy) -> None:
    """Wherever it is to go."""
    plain = torch.tensor(4.0)
    for destinations in ("CPU:1", per_replica(1.0, 2.0), None):
        assert strategy.extended.reduce_to("mean", plain, destinations) is plain


def test_replicas_values_have_one_dtype(strategy: Strategy) -> None:
    value = PerReplica([torch.tensor([1.0]), torch.tensor([1])])
    with pytest.raises(ValueError, match="dtypes differ"):
        strategy.reduce("sum", value, axis=None)
    with pytest.raises(ValueError, match="dtypes differ"):
        strategy.gather(value, 0)


@pytest.mark.spec("EXT-2")
def test_a_batch_keeps_its_order(strategy: Strategy) -> None:
    """Of dense values and rows, of several dtypes, shapes and destinations."""
    wide, whole = per_replica([[1.0], [3.0]], [[2.0], [5.0]]), per_replica([1], [2])
    rows = PerReplica([IndexedSlices(torch.ones(1), torch.tensor([index])) for index in range(2)])
    pairs = [(wide, wide), (rows, rows), (whole, "CPU:1"), (wide, "CPU:0")]
    first, slices, mean, last = strategy.extended.batch_reduce_to("mean", pairs)
    assert [part.tolist() for part in first.values] == [[[1.5], [4.0]]] * 2
    for part in slices.values:
        assert part.indices.tolist() == [0, 1]
        assert part.values.tolist() == [0.5, 0.5]
    assert (mean.dtype, mean.tolist()) == (torch.float64, [1.5])
    assert last.tolist() == [[1.5], [4.0]]


@pytest.mark.spec("EXT-2")
def test_every_destination_of_a_batch_is_checked(strategy: Strategy) -> None:
    value = per_replica(1.0, 2.0)
    batch_reduce_to = strategy.extended.batch_reduce_to
    with pytest.raises(ValueError, match="destinations must be one"):
        batch_reduce_to("sum", [(value, "CPU:0"), (value, ["CPU:0"])])
    assert batch_reduce_to("sum", []) == []


@pytest.mark.spec("EXT-3")
def test_a_tensor_is_copied_to_the_destinations(strategy: Strategy) -> None:
    broadcast_to, tensor = strategy.extended.broadcast_to, torch.ones(2)
    assert torch.equal(broadcast_to(tensor, "CPU:1"), tensor)
    copies = broadcast_to(tensor, per_replica(1.0, 2.0)).values
    assert [copy.tolist() for copy in copies] == [[1.0, 1.0]] * 2
    assert copies[0].data_ptr() != copies[1].data_ptr()
    variable = variable_of(strategy)
    kind = torch.Tensor if len(variable.values) == 1 else Mirrored
    assert isinstance(broadcast_to(tensor, variable), kind)
    of_variable = broadcast_to(variable, "CPU:1")
    assert isinstance(of_variable, torch.Tensor)
    assert torch.equal(of_variable, variable.read_value())


@pytest.mark.spec("EXT-3")
def test_numbers_need_no_copies(strategy: Strategy) -> None:
    assert strategy.extended.broadcast_to(3, per_replica(1.0, 2.0)) == 3
    for destinations in (None, ["CPU:0"]):
        with pytest.raises(ValueError, match="destinations must be one"):
            strategy.extended.broadcast_to(3, destinations)


@pytest.mark.spec("EXT-1", "EXT-2")
def test_the_strategy_reduces_by_what_it_was_given() -> None:
    class Doubling(CrossDeviceOps):
        def reduce_implementation(self, *arguments: Any) -> Any:
            return super().reduce_implementation(*arguments) * 2

    extended = MirroredStrategy(DEVICES, Doubling()).extended
    value = per_replica(1.0, 2.0)
    assert extended.reduce_to("sum", value, "CPU:0") == 6.0
    assert extended.batch_reduce_to("sum", [(value, "CPU:0")]) == [6.0]

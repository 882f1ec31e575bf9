"""Ways to bring tensors of several devices together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stratagem import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    Mirrored,
    MirroredStrategy,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
)
from stratagem._core.reduction import (
    default_cross_device_ops,
    nccl_connects,
)
from tests.full import by_pairs

pytestmark = pytest.mark.usefixtures("four_cpus")

KINDS: list[CrossDeviceOps] = [
    CrossDeviceOps(),
    ReductionToOneDevice(),
    ReductionToOneDevice("CPU:1", lambda tensors: torch.stack(tensors).sum(0)),
    HierarchicalCopyAllReduce(),
    HierarchicalCopyAllReduce(num_packs=0),
    NcclAllReduce(num_packs=2),
]


def per_replica(count: int, shape: tuple[int, ...] = (2,)) -> PerReplica:
    return PerReplica([torch.full(shape, float(10**index)) for index in range(count)])


@by_pairs("ops,count,op", KINDS, [1, 2, 3, 4], ["sum", "mean"])
def test_values_are_reduced_to_where_they_were(ops: CrossDeviceOps, count: int, op: str) -> None:
    """EXT-1: Mirrored for several destinations, all distinct; inputs unchanged."""
    value = per_replica(count)
    expected = int("1" * count) / (1 if op == "sum" else count)
    result = ops.reduce(op, value, value)
    copies = result.values if isinstance(result, Mirrored) else (result,)
    assert len(copies) == count
    for copy in copies:
        torch.testing.assert_close(copy, torch.full((2,), expected))
    assert len({copy.data_ptr() for copy in copies}) == count
    assert [float(part[0]) for part in value.values] == [10.0**i for i in range(count)]


@pytest.mark.parametrize("ops", KINDS)
def test_values_are_reduced_to_one_device(ops: CrossDeviceOps) -> None:
    """EXT-1: one tensor there."""
    assert ops.reduce("sum", per_replica(3), "CPU:0").tolist() == [111.0, 111.0]
    assert ops.reduce("mean", torch.tensor(4.0), "CPU:0") == 4.0


@pytest.mark.parametrize("ops", KINDS)
def test_a_batch_keeps_its_order(ops: CrossDeviceOps) -> None:
    """EXT-2: dense and sparse, of several dtypes and shapes."""
    wide, narrow = per_replica(2, (3, 2)), per_replica(2, ())
    whole = PerReplica([torch.tensor([1, 2]), torch.tensor([2, 4])])
    rows = PerReplica([IndexedSlices(torch.ones(1), torch.tensor([index])) for index in range(2)])
    values = [wide, rows, narrow, whole, wide]
    results = ops.batch_reduce("mean", [(value, value) for value in values])
    assert all(isinstance(result, Mirrored) for result in results)
    for index in range(2):
        first, slices, second, third, last = (r.values[index] for r in results)
        assert torch.equal(first, torch.full((3, 2), 5.5))
        assert slices.indices.tolist() == [0, 1]
        assert slices.values.tolist() == [0.5, 0.5]
        assert second == 5.5
        assert third.dtype is torch.float64
        assert third.tolist() == [1.5, 3.0]
        assert torch.equal(last, first)


@pytest.mark.parametrize("ops", KINDS[:2] + KINDS[3:])
def test_shapes_that_differ_are_refused(ops: CrossDeviceOps) -> None:
    """RED-6."""
    value = PerReplica([torch.ones(1), torch.ones(2)])
    with pytest.raises(ValueError, match="differ between replicas"):
        ops.reduce("sum", value, value)


def test_a_tensor_is_copied_to_every_destination() -> None:
    """EXT-3."""
    result = CrossDeviceOps().broadcast(torch.ones(1), per_replica(3))
    assert isinstance(result, Mirrored)
    assert len({copy.data_ptr() for copy in result.values}) == 3


@pytest.mark.parametrize("kind", [HierarchicalCopyAllReduce, NcclAllReduce])
def test_a_negative_number_of_packs_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="num_packs must be >= 0"):
        kind(num_packs=-1)


def test_the_strategy_reduces_by_what_it_was_given() -> None:
    """EXT-1: by the `CrossDeviceOps`."""

    class Adding1000(ReductionToOneDevice):
        def _reduced(self, op: Any, values: Any) -> Any:
            return super()._reduced(op, values) + 1000

    strategy = MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=Adding1000())
    assert strategy.reduce("sum", per_replica(2, ())) == 1011.0
    with pytest.raises(TypeError, match="must be CrossDeviceOps"):
        MirroredStrategy(["CPU:0"], cross_device_ops="nccl")  # type: ignore[arg-type]


def test_nccl_is_the_choice_between_gpus_alone() -> None:
    gpus = [torch.device("cuda", index) for index in range(2)]
    assert nccl_connects(gpus)
    assert not nccl_connects([gpus[0], gpus[0]])
    assert not nccl_connects([gpus[0], torch.device("cpu")])
    names = ["/job:localhost/replica:0/task:0/device:{}:" + str(i) for i in range(2)]
    chosen = [
        type(default_cross_device_ops([name.format(kind) for name in names]))
        for kind in ("GPU", "CPU")
    ]
    assert chosen == [NcclAllReduce, ReductionToOneDevice]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_nccl_adds_up_on_gpus() -> None:
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    value = PerReplica([torch.ones(3, device=device) for device in devices])
    sums = NcclAllReduce()._all_reduce(value.values)
    assert [total.device for total in sums] == devices
    assert all(total.tolist() == [float(len(devices))] * 3 for total in sums)

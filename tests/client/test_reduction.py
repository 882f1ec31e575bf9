"""Sums, means and concatenations over replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import IndexedSlices, PerReplica, ReduceOp, VariableAggregation
from stratagem._enums import reduce_op_from
from tests.client.two_replicas import TwoReplicas

STRATEGY = TwoReplicas()
reduce = STRATEGY.reduce


def per_replica(*values: Any) -> PerReplica:
    return PerReplica([torch.tensor(value) for value in values])


def test_values_of_equal_shape_are_added_or_averaged() -> None:
    """RED-5."""
    value = per_replica([1.0, 2.0], [3.0, 5.0])
    assert reduce(ReduceOp.SUM, value).tolist() == [4.0, 7.0]
    assert reduce(ReduceOp.MEAN, value, axis=None).tolist() == [2.0, 3.5]


@pytest.mark.parametrize("name", ["mean", "MEAN", "Mean"])
def test_a_reduction_may_be_named(name: str) -> None:
    """RED-2, ENU-1: case-insensitive."""
    value = per_replica(1.0, 2.0)
    assert reduce(name, value) == 1.5
    assert STRATEGY.extended.reduce_to(name, value, "CPU:0") == 1.5
    assert STRATEGY.extended.batch_reduce_to(name, [(value, "CPU:0")]) == [1.5]


def test_what_is_no_reduction_is_refused() -> None:
    """RED-2, RED-3, RED-4."""
    with pytest.raises(ValueError, match="is not a valid ReduceOp"):
        reduce("max", 1.0)
    with pytest.raises(stratagem.InvalidArgumentError):
        reduce(3, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected `reduce_op`"):
        reduce(3, torch.ones(2), axis=0)  # type: ignore[arg-type]


def test_an_aggregation_names_a_reduction() -> None:
    """ENU-2, EXT-1: `reduce_to` also takes VariableAggregation.SUM/MEAN."""
    assert reduce_op_from(VariableAggregation.SUM) is ReduceOp.SUM
    assert reduce_op_from(VariableAggregation.MEAN) is ReduceOp.MEAN
    with pytest.raises(ValueError, match=r"Could not convert from.*NONE"):
        ReduceOp.from_variable_aggregation(VariableAggregation.NONE)


def test_shapes_that_differ_are_not_broadcast() -> None:
    """RED-6."""
    value = per_replica([1.0], [1.0, 2.0])
    with pytest.raises(stratagem.InvalidArgumentError, match=r"\(1,\), \(2,\)"):
        reduce("sum", value)


@pytest.mark.parametrize("axis", [None, 0])
def test_a_mean_of_integers_is_a_true_division(axis: int | None) -> None:
    """RED-7: result is float64 (1 and 2 → 1.5)."""
    mean = reduce("mean", per_replica([1], [2]), axis)
    assert mean.dtype == torch.float64
    assert mean.item() == 1.5


def test_sums_are_taken_in_replica_order() -> None:
    """RED-5: ((a + b) + c), so that the bytes do not depend on chance."""
    big, small = torch.tensor(1e8), torch.tensor(1.0)
    three = TwoReplicas(replicas=3)
    assert three.reduce("sum", PerReplica((big, -big, small))) == 1.0
    assert three.reduce("sum", PerReplica((small, big, -big))) == 0.0


@pytest.mark.parametrize(("op", "expected"), [("sum", 15.0), ("mean", 2.5)])
@pytest.mark.parametrize("axis", [0, -1, (0,), [0]])
def test_uneven_replicas_are_weighted_by_their_size(
    op: str, expected: float, axis: Any
) -> None:
    """RED-8 to RED-10, RED-12, RED-13: [0,1,2,3] & [4,5], axis 0 → 2.5."""
    value = per_replica([0.0, 1.0, 2.0, 3.0], [4.0, 5.0])
    assert reduce(op, value, axis=axis) == expected


def test_empty_replicas_add_nothing() -> None:
    """RED-8, RED-9."""
    value = PerReplica((torch.tensor([1, 3]), torch.zeros(0, dtype=torch.int64)))
    assert reduce("sum", value, axis=0) == 4
    assert reduce("sum", value, axis=0).dtype == torch.int64
    assert reduce("mean", value, axis=0) == 2.0


def test_several_axes_are_reduced_together() -> None:
    """RED-12: MEAN denominator = product of the sizes."""
    value = per_replica([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]])
    assert reduce("mean", value, axis=(0, 1)) == 4.5
    assert reduce("sum", value, axis=(0, 1)) == 36.0
    assert reduce("mean", value, axis=0).tolist() == [4.0, 5.0]
    assert reduce("mean", value, axis=()).tolist() == [[3.0, 4.0], [5.0, 6.0]]


def test_an_axis_that_does_not_exist_is_refused() -> None:
    """RED-11, RED-14."""
    with pytest.raises(ValueError, match="out of range for a value of rank 1"):
        reduce("mean", per_replica([1.0], [2.0]), axis=1)
    with pytest.raises(TypeError, match="integer, tuple or list"):
        reduce("mean", per_replica([1.0], [2.0]), axis="0")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 0.0, 1.5, torch.tensor(0.0)])
def test_a_plain_value_has_a_mean_but_no_sum(value: Any) -> None:
    """RED-15, RED-16, RED-18 with ODD-6: whatever its value."""
    assert reduce("mean", value) is value or torch.equal(reduce("mean", value), value)
    with pytest.raises(ValueError, match=r"A non-DistributedValues value .* cannot be"):
        reduce("sum", value)


def test_with_one_replica_a_plain_value_is_its_own_sum() -> None:
    """RED-17."""
    assert TwoReplicas(replicas=1).reduce("sum", 3.0) == 3.0


def test_with_an_axis_a_plain_value_counts_once_for_each_replica() -> None:
    """RED-19: SUM multiplies by N: [1,2] with N=2 → 6; MEAN → 1.5."""
    value = torch.tensor([1.0, 2.0])
    assert reduce("sum", value, axis=0) == 6.0
    assert reduce("mean", value, axis=0) == 1.5


def test_nests_are_reduced_leaf_by_leaf() -> None:
    """RED-20 with ODD-8: everywhere."""
    nest = {"a": (per_replica(1.0, 2.0),), "b": [PerReplica((3, 4))]}
    assert reduce("sum", nest) == {"a": (3.0,), "b": [7]}
    rows = {"a": per_replica([1.0], [2.0, 3.0])}
    assert reduce("mean", rows, axis=0) == {"a": 2.0}


def test_rows_are_concatenated_and_divided() -> None:
    """RED-23: duplicates are not combined."""
    parts = [
        IndexedSlices(torch.ones(2, 1) * n, torch.tensor([0, n]), (3, 1))
        for n in (1, 2)
    ]
    total = reduce("mean", PerReplica(parts))
    assert total.indices.tolist() == [0, 1, 0, 2]
    assert total.to_dense().flatten().tolist() == [1.5, 0.5, 1.0]


def test_sparse_tensors_are_added_as_torch_does() -> None:
    """RED-23 for the sparse gradients of torch."""
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0]]),
        torch.tensor([[1.0, 2.0]]),
        (3, 2),
        check_invariants=True,
    )
    total = reduce("sum", PerReplica((sparse, sparse)))
    assert total.layout is torch.sparse_coo
    assert total.to_dense()[0].tolist() == [2.0, 4.0]
    rows = IndexedSlices.from_sparse(sparse)
    assert torch.equal(rows.to_dense(), sparse.to_dense())


def test_reducing_to_a_distributed_value_mirrors_the_result() -> None:
    """EXT-1: PerReplica / the value itself → Mirrored on those devices."""
    value = per_replica([1.0], [2.0])
    result = STRATEGY.extended.reduce_to("sum", value, value)
    assert isinstance(result, stratagem.Mirrored)
    first, second = result.values
    assert first.tolist() == second.tolist() == [3.0]
    assert first.data_ptr() != second.data_ptr()


def test_reducing_to_a_variable_gives_a_tensor() -> None:
    """EXT-1: a CS/PS variable → a tensor on its device."""
    with STRATEGY.scope():
        variable = stratagem.Variable(1.0)
    value = per_replica(1.0, 2.0)
    assert torch.equal(
        STRATEGY.extended.reduce_to("sum", value, variable), torch.tensor(3.0)
    )


def test_several_destinations_are_refused() -> None:
    """EXT-1: `destinations` list/tuple."""
    value = per_replica(1.0, 2.0)
    with pytest.raises(stratagem.InvalidArgumentError, match="destinations"):
        STRATEGY.extended.reduce_to("sum", value, ["CPU:0"])
    with pytest.raises(stratagem.InvalidArgumentError, match="destinations"):
        STRATEGY.extended.batch_reduce_to("sum", [(value, ("CPU:0",))])


def test_gathering_concatenates_in_replica_order() -> None:
    """GAT-1, GAT-2, GAT-5 with ODD-9, GAT-7."""
    value = per_replica([[1], [2]], [[3]])
    for axis in (0, -2):
        assert STRATEGY.gather(value, axis).tolist() == [[1], [2], [3]]
    plain = torch.ones(2)
    assert torch.equal(STRATEGY.gather(plain, 0), plain)


@pytest.mark.parametrize(
    ("value", "axis"),
    [
        (per_replica([[1, 2]], [[3]]), 0),
        (per_replica([1], [[2]]), 0),
        (per_replica(1, 2), 0),
        (per_replica([1], [2]), 1),
    ],
)
def test_values_that_do_not_fit_are_not_gathered(value: PerReplica, axis: int) -> None:
    """GAT-3, GAT-4."""
    with pytest.raises(stratagem.InvalidArgumentError):
        STRATEGY.gather(value, axis)


def test_rows_are_not_gathered() -> None:
    """GAT-6: NotImplementedError “gather does not support IndexedSlices”."""
    rows = IndexedSlices(torch.ones(1, 1), torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="does not support IndexedSlices"):
        STRATEGY.gather(rows, 0)


def test_rows_and_indices_have_to_match() -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="one row of values"):
        IndexedSlices(torch.ones(2, 1), torch.tensor([0]))
    with pytest.raises(stratagem.InvalidArgumentError, match="dense_shape"):
        IndexedSlices(torch.ones(1, 1), torch.tensor([0])).to_dense()
    with pytest.raises(stratagem.InvalidArgumentError, match="sparse"):
        IndexedSlices.from_sparse(torch.ones(2))

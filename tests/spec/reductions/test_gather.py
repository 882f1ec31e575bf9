"""Concatenation over replicas, in cross-replica context."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    IndexedSlices,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    Strategy,
)

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture(params=[MirroredStrategy, CentralStorageStrategy])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param(["CPU:0", "CPU:1"])


def per_replica(*values: Any) -> PerReplica:
    return PerReplica([torch.tensor(value) for value in values])


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        pytest.param(0, [[1, 2], [3, 4]], marks=pytest.mark.spec("GAT-1")),
        pytest.param(1, [[1, 2, 3, 4]], marks=pytest.mark.spec("GAT-1")),
        pytest.param(-1, [[1, 2, 3, 4]], marks=pytest.mark.spec("GAT-5")),
        pytest.param(-2, [[1, 2], [3, 4]], marks=pytest.mark.spec("GAT-5")),
    ],
)
def test_components_are_joined_in_replica_order(
    strategy: Strategy, axis: int, expected: list[Any]
) -> None:
    """A negative axis counts from the end (ODD-9)."""
    assert strategy.gather(per_replica([[1, 2]], [[3, 4]]), axis).tolist() == expected


@pytest.mark.spec("GAT-1")
def test_the_leaves_of_a_nest_are_gathered(strategy: Strategy) -> None:
    nest = {"a": [per_replica([1], [2])]}
    assert strategy.gather(nest, 0)["a"][0].tolist() == [1, 2]


@pytest.mark.spec("GAT-2")
def test_sizes_may_differ_along_the_axis(strategy: Strategy) -> None:
    value = per_replica([[1], [2]], [[3]])
    assert strategy.gather(value, 0).tolist() == [[1], [2], [3]]
    value = PerReplica([torch.ones(1, 2), torch.ones(1, 0)])
    assert strategy.gather(value, 1).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("value", "axis"),
    [
        pytest.param(per_replica([[1, 2]], [[3]]), 0, marks=pytest.mark.spec("GAT-3")),
        pytest.param(per_replica([1], [[2]]), 0, marks=pytest.mark.spec("GAT-3")),
        pytest.param(per_replica(1, 2), 0, marks=pytest.mark.spec("GAT-4")),
        pytest.param(per_replica([1], [2]), 1, marks=pytest.mark.spec("GAT-3")),
    ],
)
def test_values_that_do_not_fit_are_refused(
    strategy: Strategy, value: PerReplica, axis: int
) -> None:
    with pytest.raises(ValueError, match="axis"):
        strategy.gather(value, axis)


@pytest.mark.spec("GAT-6")
def test_rows_are_not_gathered_as_such(strategy: Strategy) -> None:
    """Only plain ones are refused; as components they become dense."""
    rows = IndexedSlices(torch.ones(1, 1), torch.tensor([1]), (2, 1))
    with pytest.raises(NotImplementedError, match="does not support IndexedSlices"):
        strategy.gather(rows, 0)
    gathered = strategy.gather(PerReplica([rows, rows]), 0)
    assert gathered.tolist() == [[0.0], [1.0], [0.0], [1.0]]


@pytest.mark.spec("GAT-7")
def test_a_plain_tensor_is_returned_as_it_is(strategy: Strategy) -> None:
    plain = torch.ones(2)
    one = OneDeviceStrategy("CPU:0"), stratagem.get_strategy()
    for each in (strategy, *one):
        assert each.gather(plain, 0) is plain


@pytest.mark.spec("GAT-8")
def test_a_replica_gathers_otherwise(strategy: Strategy) -> None:
    with pytest.raises(RuntimeError, match="all_gather"):
        strategy.run(lambda: strategy.gather(torch.ones(1), 0))

"""Concatenation over replicas, in cross-replica context."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
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


@pytest.mark.spec("GAT-1")
def test_the_leaves_of_a_nest_are_gathered(strategy: Strategy) -> None:
    nest = {"a": [per_replica([1], [2])]}
    assert strategy.gather(nest, 0)["a"][0].tolist() == [1, 2]


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

"""Values that a function makes for each replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stratagem import (
    ParameterServerStrategy,
    PerReplica,
    ValueContext,
    get_strategy,
)
from tests.client.two_replicas import TwoReplicas


@pytest.mark.spec("STR-36", "INP-5", "INP-51", "ENU-14")
def test_a_function_makes_one_value_for_each_replica() -> None:
    strategy, told = TwoReplicas(3), []

    def value_fn(context: ValueContext) -> Any:
        told.append(context)
        return torch.tensor(float(context.replica_id_in_sync_group))

    values = strategy.experimental_distribute_values_from_function(value_fn)
    assert told == [ValueContext(0, 3), ValueContext(1, 3), ValueContext(2, 3)]
    assert isinstance(values, PerReplica)
    assert strategy.reduce("sum", values) == 3


@pytest.mark.spec("VAL-10", "INP-51")
def test_values_stay_as_they_are() -> None:
    strategy = TwoReplicas()
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: (3.0, 2.0)[context.replica_id_in_sync_group]
    )
    assert strategy.experimental_local_results(numbers) == (3.0, 2.0)
    assert [type(value) for value in numbers.values] == [float, float]
    array = np.array([1, 2])
    arrays = strategy.experimental_distribute_values_from_function(lambda _: array)
    assert arrays.values[0] is arrays.values[1] is array


@pytest.mark.spec("INP-51", "INP-52")
def test_structures_become_structures_of_per_replica_values() -> None:
    strategy = TwoReplicas()
    sparse = torch.eye(2).to_sparse()
    values = strategy.experimental_distribute_values_from_function(
        lambda context: {"n": (context.num_replicas_in_sync, "text"), "s": sparse}
    )
    assert values["n"][0].values == (2, 2)
    assert values["n"][1].values == ("text", "text")
    assert [value.layout for value in values["s"].values] == [torch.sparse_coo] * 2
    with pytest.raises(ValueError, match="same structure"):
        strategy.experimental_distribute_values_from_function(
            lambda context: [1] * context.replica_id_in_sync_group
        )


@pytest.mark.spec("INP-51")
def test_one_replica_gets_a_distributed_value_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for strategy in (TwoReplicas(1), ParameterServerStrategy()):
        values = strategy.experimental_distribute_values_from_function(lambda _: 4)
        assert isinstance(values, PerReplica)
        assert values.values == (4,)


@pytest.mark.spec("DEF-6")
def test_the_default_strategy_returns_the_raw_value() -> None:
    told: list[ValueContext] = []
    default = get_strategy()

    def value_fn(context: ValueContext) -> Any:
        told.append(context)
        return told

    value = default.experimental_distribute_values_from_function(value_fn)
    assert value is told
    assert told == [ValueContext(0, 1)]

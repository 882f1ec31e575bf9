"""Reduction over replicas, in each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
)
from tests.client.two_replicas import TwoReplicas, number

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture(params=[MirroredStrategy, CentralStorageStrategy, TwoReplicas])
def strategy(request: pytest.FixtureRequest) -> Any:
    if request.param is TwoReplicas:
        return TwoReplicas()
    return request.param(["CPU:0", "CPU:1"])


def replica() -> stratagem.ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


@pytest.mark.spec("REP-7")
def test_all_reduce_gives_every_replica_the_result(strategy: Strategy) -> None:
    def fn() -> Any:
        one, two = torch.tensor(1 + number()), torch.tensor([3.0, 4.0])
        return (
            replica().all_reduce("sum", {"a": one, "b": [two]}),
            replica().all_reduce(stratagem.ReduceOp.MEAN, one),
        )

    total, mean = strategy.run(fn)
    assert total["a"].values == (3, 3)
    assert [value.tolist() for value in total["b"][0].values] == [[6.0, 8.0]] * 2
    assert mean.values == (1.5, 1.5)
    assert mean.values[0].dtype == torch.float64


@pytest.mark.spec("REP-7")
def test_what_one_replica_does_to_its_result_does_not_show_on_another(
    strategy: Strategy,
) -> None:
    def fn() -> torch.Tensor:
        total: torch.Tensor = replica().all_reduce("sum", torch.ones(2))
        return total.div_(2)

    results = strategy.run(fn).values
    assert [value.tolist() for value in results] == [[1.0, 1.0]] * 2


@pytest.mark.spec("REP-9")
def test_all_reduce_of_nothing_is_nothing(strategy: Strategy) -> None:
    assert strategy.run(lambda: replica().all_reduce("sum", {})) == {}


@pytest.mark.spec("REP-7")
@pytest.mark.parametrize(
    ("op", "value"), [(3, torch.ones(1)), ("max", torch.ones(1)), ("sum", 1.0)]
)
def test_all_reduce_refuses_what_is_no_reduction_or_no_tensor(
    strategy: Strategy, op: Any, value: Any
) -> None:
    with pytest.raises(stratagem.InvalidArgumentError):
        strategy.run(lambda: replica().all_reduce(op, value))


@pytest.mark.spec("REP-7")
@pytest.mark.parametrize("kind", [MirroredStrategy, OneDeviceStrategy])
def test_all_reduce_takes_the_local_component_of_a_variable(kind: Any) -> None:
    strategy = kind("CPU:0" if kind is OneDeviceStrategy else ["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = stratagem.Variable(
            0.0,
            synchronization=stratagem.VariableSynchronization.ON_READ,
            aggregation=stratagem.VariableAggregation.SUM,
        )

    def fn() -> torch.Tensor:
        variable.assign_add(3.0 * number() + 1.0)
        result: torch.Tensor = replica().all_reduce("sum", variable)
        return result

    totals = strategy.experimental_local_results(strategy.run(fn))
    assert [float(total) for total in totals] == {1: [1.0], 2: [5.0] * 2}[len(totals)]

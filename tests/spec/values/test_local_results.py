"""What of a distributed value belongs to this process."""

from __future__ import annotations

from collections.abc import Sequence
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
)
from tests.client.two_replicas import TwoReplicas
from tests.deprecations import warns_to_use

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1"]


@pytest.fixture(params=[MirroredStrategy, CentralStorageStrategy])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param(DEVICES)


@pytest.mark.spec("LOC-1")
def test_they_are_the_components_in_replica_order(strategy: Strategy) -> None:
    local = strategy.experimental_local_results
    assert local(PerReplica((1, 2))) == (1, 2)
    assert local(Mirrored((3, 3))) == (3, 3)


@pytest.mark.spec("LOC-1")
def test_those_of_a_mirrored_variable_are_its_copies() -> None:
    strategy = MirroredStrategy(DEVICES)
    with strategy.scope():
        variable = Variable(1.0)
    first, second = strategy.experimental_local_results(variable)
    assert (first.name, second.name) == ("Variable", "Variable/replica_1")


@pytest.mark.spec("LOC-2")
@pytest.mark.parametrize("value", [None, "text", 3, MirroredStrategy])
def test_a_plain_value_is_its_only_result(strategy: Strategy, value: Any) -> None:
    assert strategy.experimental_local_results(value) == (value,)


@pytest.mark.spec("LOC-3")
def test_those_of_a_nest_are_nests(strategy: Strategy) -> None:
    same = object()
    nest = {"a": PerReplica((1, 2)), "b": [same, (PerReplica((4, 5)),)]}
    assert strategy.experimental_local_results(nest) == (
        {"a": 1, "b": [same, (4,)]},
        {"a": 2, "b": [same, (5,)]},
    )


@pytest.mark.spec("LOC-4")
@pytest.mark.parametrize("empty", [(), [], {}])
def test_an_empty_nest_comes_once_for_each_replica(strategy: Strategy, empty: Any) -> None:
    assert strategy.experimental_local_results(empty) == (empty, empty)


@pytest.mark.spec("LOC-5")
def test_a_central_variable_is_its_only_result() -> None:
    strategy = CentralStorageStrategy(DEVICES)
    with strategy.scope():
        variable = Variable(1.0)
    (result,) = strategy.experimental_local_results(variable)
    assert result is variable


@pytest.mark.spec("LOC-6")
@pytest.mark.parametrize("value", [{"a": [1]}, (), PerReplica((1,)), None])
def test_one_replica_does_not_open_nests(value: Any) -> None:
    for one in (OneDeviceStrategy("CPU:0"), stratagem.get_strategy()):
        (result,) = one.experimental_local_results(value)
        assert result is value


@pytest.mark.spec("LOC-7")
def test_unwrap_is_its_old_name(strategy: Strategy) -> None:
    """A tuple, as since 1.13."""
    with warns_to_use("experimental_local_results"):
        assert strategy.unwrap(PerReplica((1, 2))) == (1, 2)


class OneOfTwoWorkers(TwoReplicas):
    """Two replicas here, and two on another worker."""

    def __init__(self) -> None:
        super().__init__()
        self._extended = _WorkerExtended(self)


class _WorkerExtended(stratagem.StrategyExtended):
    @property
    def worker_devices(self) -> Sequence[str]:
        return [f"/job:worker/task:{i // 2}/device:CPU:{i % 2}" for i in range(4)]

    @property
    def _num_local_replicas(self) -> int:
        return 2


@pytest.mark.spec("LOC-8")
def test_components_of_other_workers_are_not_local() -> None:
    strategy = OneOfTwoWorkers()
    assert strategy.num_replicas_in_sync == 4
    local = strategy.experimental_local_results({"a": PerReplica((1, 2))})
    assert local == ({"a": 1}, {"a": 2})


@pytest.mark.spec("GRP-1")
def test_grouping_waits_for_nothing(strategy: Strategy) -> None:
    """What has no operation to wait for comes back as it is."""
    single = torch.ones(1)
    assert strategy.group(PerReplica((1, 2))) is None
    assert strategy.group(single) is single
    assert strategy.group(single, name="all") is None

"""What of a distributed value belongs to this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import stratagem
from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    Strategy,
)
from tests.client.two_replicas import TwoReplicas
from tests.deprecations import warns_to_use

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1"]


@pytest.fixture(params=[MirroredStrategy, CentralStorageStrategy])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param(DEVICES)


@pytest.mark.spec("LOC-4")
@pytest.mark.parametrize("empty", [(), [], {}])
def test_an_empty_nest_comes_once_for_each_replica(strategy: Strategy, empty: Any) -> None:
    assert strategy.experimental_local_results(empty) == (empty, empty)


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

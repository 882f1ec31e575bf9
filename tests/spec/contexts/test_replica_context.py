"""What a replica function learns of its place among the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    ReplicaContext,
    Strategy,
)
from tests.client.two_replicas import TwoReplicas
from tests.deprecations import warns_to_use

pytestmark = pytest.mark.usefixtures("four_cpus")

spec = pytest.mark.spec

CPUS = ["CPU:0", "CPU:1"]
NAMES = [f"/job:localhost/replica:0/task:0/device:{cpu}" for cpu in CPUS]


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def replica() -> ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


def in_replicas(strategy: Strategy, look: Callable[[ReplicaContext], Any]) -> list[Any]:
    """Return what a look at its context tells in each replica."""
    seen: list[Any] = []
    strategy.run(lambda: seen.append(look(replica())))
    return seen


@spec("REP-1")
@pytest.mark.parametrize("number", ["0", 0.5, [0]])
def test_a_replica_number_is_an_integer_a_tensor_or_none(
    strategy: TwoReplicas, number: Any
) -> None:
    with pytest.raises(ValueError, match="integer, a Tensor or None"):
        ReplicaContext(strategy, number)


@spec("REP-1")
@pytest.mark.parametrize("number", [1, torch.tensor(1), None])
def test_a_replica_context_is_entered_by_with(strategy: TwoReplicas, number: Any) -> None:
    with ReplicaContext(strategy, number) as context:
        assert replica() is context
        assert stratagem.get_strategy() is strategy
        assert context.replica_id_in_sync_group == number


def nested(*names: str) -> list[Any]:
    return [[[name]] for name in names]


@spec("REP-5")
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: MirroredStrategy(CPUS), nested(*NAMES)),
        (lambda: MirroredStrategy(CPUS[1:]), nested(NAMES[1])),
        (lambda: CentralStorageStrategy(CPUS), nested(*NAMES)),
        (lambda: ParameterServerStrategy(), nested(NAMES[0])),
        (lambda: OneDeviceStrategy("CPU:1"), [(NAMES[1],)]),
        (lambda: TwoReplicas(), [(NAMES[0],), (NAMES[1],)]),
        (lambda: stratagem.get_strategy(), [("",)]),
    ],
)
@pytest.mark.filterwarnings("ignore:devices is deprecated:DeprecationWarning")
def test_the_device_of_a_replica(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Strategy], expected: list[Any]
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert in_replicas(make(), lambda context: context.devices) == expected


@spec("REP-5")
def test_the_devices_of_replicas_are_deprecated() -> None:
    with warns_to_use("the device of a tensor"):
        assert replica().devices == ("",)

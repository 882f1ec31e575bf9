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
from tests.spec.contexts.contexts import CROSS, state

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


@spec("REP-2")
def test_replica_numbers_are_made_anew(strategy: TwoReplicas) -> None:
    def look(context: ReplicaContext) -> int:
        first, second = (context.replica_id_in_sync_group for _ in range(2))
        assert isinstance(first, torch.Tensor)
        assert first is not second
        assert first.shape == ()
        assert first.dtype == torch.int32
        return int(first)

    assert in_replicas(strategy, look) == [0, 1]
    assert in_replicas(stratagem.get_strategy(), look) == [0]


@spec("REP-2")
def test_the_number_of_the_default_replica_is_a_plain_zero() -> None:
    number = replica().replica_id_in_sync_group
    assert type(number) is int
    assert number == 0


@spec("REP-3", "REP-4")
def test_a_replica_knows_its_strategy_and_how_many_replicas_there_are(
    strategy: TwoReplicas,
) -> None:
    for one, count in ((strategy, 2), (stratagem.get_strategy(), 1)):
        looks = in_replicas(one, lambda c: (c.strategy, c.num_replicas_in_sync))
        assert looks == [(one, count)] * count


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
@pytest.mark.filterwarnings("ignore:devices is deprecated:DeprecationWarning")
def test_the_default_replica_is_on_the_current_device() -> None:
    assert replica().devices == ("",)
    with stratagem.device("CPU:1"):
        assert replica().devices == (NAMES[1],)


@spec("REP-5")
def test_the_devices_of_replicas_are_deprecated() -> None:
    with warns_to_use("the device of a tensor"):
        assert replica().devices == ("",)


@spec("REP-6")
def test_a_merge_function_is_called_with_the_strategy(strategy: TwoReplicas) -> None:
    def merge(given: Strategy, value: Any, *, factor: int) -> Any:
        assert state() == CROSS
        assert given is strategy
        return given.reduce("sum", value) * factor

    def fn(value: int) -> Any:
        return replica().merge_call(merge, args=(value,), kwargs={"factor": 10})

    values = stratagem.PerReplica((1, 2))
    assert strategy.run(fn, (values,)) == 30


@spec("REP-6")
def test_the_default_replica_calls_a_merge_function_at_once() -> None:
    default, value = stratagem.get_strategy(), object()
    assert replica().merge_call(lambda *args: args, (value,)) == (default, value)


@spec("REP-10")
@pytest.mark.filterwarnings("ignore:devices is deprecated:DeprecationWarning")
def test_a_replica_that_is_over_can_be_looked_at_but_not_merged(
    strategy: TwoReplicas,
) -> None:
    over = in_replicas(strategy, lambda context: context)[1]
    members: list[Callable[[], Any]] = [
        lambda: over.merge_call(lambda s: None),
        lambda: over.devices,
    ]
    for member in members:
        with pytest.raises(RuntimeError, match="Mismatching tf"):
            member()
        with strategy.scope(), pytest.raises(RuntimeError, match="Need to be inside"):
            member()
        with pytest.raises(RuntimeError, match="Mismatching ReplicaContext"):
            strategy.run(member)
    assert over.strategy is strategy
    assert over.num_replicas_in_sync == 2
    assert over.replica_id_in_sync_group == 1

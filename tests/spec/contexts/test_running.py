"""Replicas in lock step, and where they meet."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

import stratagem
from stratagem import PerReplica
from tests.client.two_replicas import TwoReplicas, number

spec = pytest.mark.spec


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def replica() -> stratagem.ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


@spec("STR-20")
def test_each_replica_gets_its_components_of_the_arguments(
    strategy: TwoReplicas,
) -> None:
    inputs = {"x": [PerReplica((1, 2))], "y": 10}

    def fn(nest: dict[str, Any], *, z: int) -> tuple[int, int]:
        return nest["x"][0] * nest["y"], z

    scaled, same = strategy.run(fn, (inputs,), {"z": PerReplica((5, 5))})
    assert scaled.values == (10, 20)
    assert same == 5


@spec("STR-20")
@pytest.mark.parametrize("args", [torch.ones(2), "ab", 5, {"a": 1}])
def test_positional_arguments_come_in_a_list_or_tuple(strategy: TwoReplicas, args: Any) -> None:
    with pytest.raises(ValueError, match="positional args must be a list or tuple"):
        strategy.run(lambda *_: None, args)


@spec("RUN-2")
def test_a_single_replica_runs_in_the_calling_thread() -> None:
    one = TwoReplicas(replicas=1)
    result = one.run(lambda x: (threading.current_thread(), x), (PerReplica((7,)),))
    assert result == (threading.current_thread(), 7)


@spec("RUN-3")
def test_replicas_see_the_modes_of_the_calling_thread(strategy: TwoReplicas) -> None:
    setting = contextvars.ContextVar("setting", default="unset")
    setting.set("set")

    def look() -> tuple[Any, ...]:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return torch.is_grad_enabled(), product.dtype, setting.get()

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert strategy.run(look) == (False, torch.bfloat16, "set")
    assert strategy.run(look) == (True, torch.float32, "set")
    with torch.inference_mode():
        assert strategy.run(torch.is_inference_mode_enabled)


class Total(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = replica().all_reduce("sum", x)
        return result


@spec("RUN-4")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("record", [torch.jit.trace, torch.export.export])
def test_a_graph_cannot_be_recorded_across_a_merge_call(strategy: TwoReplicas, record: Any) -> None:
    message = "merge_call` called while defining a new graph or a tf.function"
    with pytest.raises(stratagem.ContextError, match=message):
        strategy.run(lambda: record(Total(), (torch.ones(2),)))


class Trouble(Exception):
    pass


@spec("RUN-5")
def test_a_stopped_replica_cleans_up(strategy: TwoReplicas) -> None:
    cleaned = []

    def fn() -> None:
        if number() == 1:
            raise Trouble
        try:
            replica().merge_call(lambda strategy: None)
        except Exception:
            pytest.fail("a stop request is no Exception")
        finally:
            cleaned.append(number())

    with pytest.raises(Trouble):
        strategy.run(fn)
    assert cleaned == [0]


@spec("MRG-5")
def test_a_merge_function_records_gradients_as_the_first_replica_does(
    strategy: TwoReplicas,
) -> None:
    def fn() -> bool:
        with torch.set_grad_enabled(number() == 1):
            merged: bool = replica().merge_call(lambda s: torch.is_grad_enabled())
        return merged

    assert strategy.run(fn) is False

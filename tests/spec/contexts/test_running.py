"""Replicas in lock step, and where they meet."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

import stratagem
from stratagem import PerReplica
from stratagem._core import device_names
from tests.client.two_replicas import TwoReplicas, number

spec = pytest.mark.spec


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def replica() -> stratagem.ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


@spec("RUN-1", "RUN-7")
def test_replicas_take_turns_from_one_merge_call_to_the_next(
    strategy: TwoReplicas,
) -> None:
    trace: list[str] = []

    def fn() -> None:
        trace.append(f"a{number()}")
        replica().merge_call(lambda strategy: trace.append("merge"))
        trace.append(f"b{number()}")

    strategy.run(fn)
    assert trace == ["a0", "a1", "merge", "b0", "b1"]


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


@spec("RUN-3")
def test_each_replica_has_its_device(strategy: TwoReplicas) -> None:
    with stratagem.device("CPU:7"):
        devices = strategy.run(device_names.current).values
    assert devices == strategy.extended.worker_devices
    assert devices[1].endswith("/device:CPU:1")


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
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_replica_stops_the_others(strategy: TwoReplicas, failing: int) -> None:
    trouble, went_on = Trouble(), []

    def fn() -> None:
        if number() == failing:
            raise trouble
        replica().merge_call(lambda strategy: None)
        went_on.append(number())

    with pytest.raises(Trouble) as caught:
        strategy.run(fn)
    assert caught.value is trouble
    assert not went_on
    assert strategy.run(number).values == (0, 1)


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


@spec("MRG-4", "RUN-5")
def test_errors_of_merge_functions_come_out_of_run(strategy: TwoReplicas) -> None:
    def fail(*_: object) -> None:
        raise Trouble

    def after_merge() -> None:
        replica().merge_call(lambda strategy: None)
        fail()

    def within_merge() -> None:
        replica().merge_call(lambda s: s.run(lambda: replica().merge_call(fail)))

    for fn in (lambda: replica().merge_call(fail), after_merge, within_merge):
        with pytest.raises(Trouble):
            strategy.run(fn)
    assert not stratagem.has_strategy()


@spec("MRG-1")
def test_a_merge_function_gets_the_strategy_and_merged_arguments(
    strategy: TwoReplicas,
) -> None:
    main, calls = threading.current_thread(), []

    def merge(given: stratagem.Strategy, x: Any, *, k: Any) -> None:
        calls.append((x.values, k))
        assert given is strategy
        assert threading.current_thread() is main
        assert stratagem.in_cross_replica_context()

    strategy.run(lambda: replica().merge_call(merge, (number(),), {"k": "same"}))
    assert calls == [((0, 1), "same")]


@spec("MRG-2")
def test_each_replica_gets_its_component_of_what_a_merge_returns(
    strategy: TwoReplicas,
) -> None:
    with strategy.scope():
        variable = stratagem.Variable(1.0)

    def fn() -> tuple[Any, ...]:
        result = {"a": [PerReplica((1, 2))], "b": "all", "v": variable}
        mine = replica().merge_call(lambda strategy: result)
        return mine["a"][0], mine["b"], mine["v"]

    component, same, container = strategy.run(fn)
    assert component.values == (1, 2)
    assert same == "all"
    assert container is variable


@spec("MRG-3")
def test_replicas_have_to_make_the_same_number_of_merge_calls(
    strategy: TwoReplicas,
) -> None:
    def fn() -> None:
        if number() == 1:
            replica().merge_call(lambda strategy: None)

    with pytest.raises(RuntimeError, match=r"different number of.*merge_call"):
        strategy.run(fn)


@spec("MRG-5")
def test_a_merge_function_records_gradients_as_the_first_replica_does(
    strategy: TwoReplicas,
) -> None:
    def fn() -> bool:
        with torch.set_grad_enabled(number() == 1):
            merged: bool = replica().merge_call(lambda s: torch.is_grad_enabled())
        return merged

    assert strategy.run(fn) is False


@spec("MRG-6")
def test_replicas_may_be_run_within_a_merge_function(strategy: TwoReplicas) -> None:
    result = strategy.run(lambda: replica().merge_call(lambda s: s.run(number)) * 10 + number())
    assert result.values == (0, 11)

"""The strategy that is in charge where the user chose none."""

from __future__ import annotations

import pytest
import torch

import stratagem
from tests.spec.contexts.contexts import CROSS, state

spec = pytest.mark.spec


@pytest.fixture
def default() -> stratagem.Strategy:
    return stratagem.get_strategy()


@spec("DEF-1")
def test_it_is_in_charge_outside_of_scopes(default: stratagem.Strategy) -> None:
    assert stratagem.get_strategy() is default
    assert default.run(stratagem.get_strategy) is default
    assert default.num_replicas_in_sync == 1
    with pytest.raises(RuntimeError, match="Should only create a single instance"):
        type(default)()


@spec("DEF-2")
def test_run_calls_the_function_once_and_returns_its_result(
    default: stratagem.Strategy,
) -> None:
    calls: list[tuple[int, int]] = []

    def fn(a: int, b: int) -> list[tuple[int, int]]:
        calls.append((a, b))
        return calls

    assert default.run(fn, (1,), {"b": 2}) is calls
    assert calls == [(1, 2)]


@spec("DEF-3")
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_reducing_returns_the_value(default: stratagem.Strategy, op: str) -> None:
    value = {"a": 3, "b": torch.ones(2)}
    assert default.reduce(op, value, axis=None) is value
    assert default.extended.reduce_to(op, value, "CPU:0") is value


@spec("DEF-8")
def test_a_value_is_the_only_local_result(default: stratagem.Strategy) -> None:
    for value in (3, [1, 2], {"a": torch.ones(1)}):
        (result,) = default.experimental_local_results(value)
        assert result is value


@spec("DEF-9")
def test_update_calls_the_function_with_the_variable(
    default: stratagem.Strategy,
) -> None:
    variable = stratagem.Variable(1.0)
    update = default.extended.update
    assert update(variable, lambda v, x: v is variable and x, (5,)) == 5
    assert update(variable, lambda v: {"a": 1}, group=False) == {"a": (1,)}
    assert update(variable, lambda v: state()) == (False, *CROSS[1:])
    update(variable, lambda v, *, by: v.assign_add(by), kwargs={"by": 2.0})
    assert variable.numpy() == 3.0


@spec("DEF-10")
@pytest.mark.parametrize("devices", ["worker_devices", "parameter_devices"])
def test_there_are_no_devices_to_speak_of(default: stratagem.Strategy, devices: str) -> None:
    with pytest.raises(RuntimeError, match="unsupported"):
        getattr(default.extended, devices)


@spec("DEF-11")
def test_gathering_returns_the_value(default: stratagem.Strategy) -> None:
    value = [torch.ones(2), {"b": 3}]
    assert default.gather(value, axis=0) is value

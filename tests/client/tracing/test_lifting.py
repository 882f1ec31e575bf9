"""Captured values of an update function that become inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem._tracing.trace import TracedUpdate, trace
from tests.client.tracing.traced import kinds, numbers, ones, operations, variable

GLOBAL_RATE = 0.5


@dataclass
class Settings:
    rate: float


class Rule:
    """An optimizer of the user's own, in the usual form."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def apply(self, v: Any, g: torch.Tensor) -> None:
        v.sub_(self.rate * g)


def scaled(g: torch.Tensor) -> torch.Tensor:
    return GLOBAL_RATE * g


def closure(rate: float) -> Callable[..., Any]:
    return lambda v, g: v.sub_(rate * g)


def default(rate: float) -> Callable[..., Any]:
    def fn(v: Any, g: torch.Tensor, rate: float = rate, *, zero: float = 0.0) -> None:
        v.sub_(rate * g + zero)

    return fn


def container(rate: float) -> Callable[..., Any]:
    settings = {"rates": [rate, (1.0, rate)]}
    return lambda v, g: v.sub_(settings["rates"][1][1] * g)  # type: ignore[index]


def instance(rate: float) -> Callable[..., Any]:
    settings = Settings(rate)
    return lambda v, g: v.sub_(settings.rate * g)


def namespace(rate: float) -> Callable[..., Any]:
    settings = SimpleNamespace(rate=rate)
    return lambda v, g: v.sub_(settings.rate * g)


def nested(rate: float) -> Callable[..., Any]:
    def inner(g: torch.Tensor) -> torch.Tensor:
        return (lambda factor: factor * rate * g)(2)

    return lambda v, g: v.sub_(inner(g))


def partial(rate: float) -> Callable[..., Any]:
    return functools.partial(lambda v, g, rate: v.sub_(rate * g), rate=rate)


def decorated(rate: float) -> Callable[..., Any]:
    @torch.no_grad()
    def fn(v: Any, g: torch.Tensor) -> None:
        v.sub_(rate * g)

    return fn


def method(rate: float) -> Callable[..., Any]:
    return Rule(rate).apply


def numpy_number(rate: float) -> Callable[..., Any]:
    as_numpy = np.float32(rate)
    return lambda v, g: v.sub_(g, alpha=as_numpy)


CAPTURES = [
    closure,
    default,
    container,
    instance,
    namespace,
    nested,
    partial,
    decorated,
    method,
    numpy_number,
]


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_captured_number_is_an_input(capture: Callable[..., Any]) -> None:
    updates = [trace(capture(rate), [variable()], [ones()]) for rate in (0.5, 0.25)]
    assert 0.5 in numbers(updates[0])
    assert 0.25 in numbers(updates[1])
    assert updates[0].trace.digest == updates[1].trace.digest


def test_a_global_number_is_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced() -> TracedUpdate:
        return trace(lambda v, g: v.sub_(scaled(g)), [variable()], [ones()])

    first = traced()
    monkeypatch.setitem(globals(), "GLOBAL_RATE", 0.125)
    second = traced()
    assert (numbers(first), numbers(second)) == ([0.5], [0.125])
    assert first.trace.digest == second.trace.digest


def test_numbers_in_arguments_are_inputs() -> None:
    def fn(v: Any, g: torch.Tensor, betas: tuple[float, float], *, step: int) -> None:
        v.add_(g, alpha=betas[1] ** step)

    def traced(betas: tuple[float, float], step: int) -> TracedUpdate:
        return trace(fn, [variable()], [ones(), betas], {"step": step})

    first, second = traced((0.5, 0.9), 3), traced((0.1, 0.8), 4)
    assert (numbers(first), numbers(second)) == ([0.9, 3], [0.8, 4])
    assert first.trace.digest == second.trace.digest


def test_captured_tensors_and_variables_are_inputs() -> None:
    def capturing(value: float) -> TracedUpdate:
        factor, average = torch.full((4,), value), variable("average")
        holder = {"average": average}
        return trace(lambda v: v.add_(factor * holder["average"]), [variable()])

    first, second = capturing(1.0), capturing(2.0)
    assert kinds(first) == ["TENSOR", "READ", "WRITE"]
    assert first.trace.digest == second.trace.digest
    assert isinstance(second.bindings[0], torch.Tensor)
    assert second.bindings[0].tolist() == [2.0] * 4


class Opaque(torch.nn.Module):
    """A module, which is not looked into beforehand."""

    def __init__(self, v: Any, factor: torch.Tensor) -> None:
        super().__init__()
        self.v, self.factor = v, factor


def test_what_an_opaque_object_holds_is_found_when_it_is_used() -> None:
    v, factor = variable(), ones()
    holder = Opaque(v, factor)

    def fn(first: Any) -> None:
        first.add_(torch.mul(holder.v, holder.factor))

    update = trace(fn, [v])
    assert kinds(update) == ["WRITE", "TENSOR"]
    assert update.bindings[1] is factor


def test_a_tensor_made_in_the_function_is_sent_along() -> None:
    update = trace(lambda v: v.add_(torch.tensor([1.0, 2.0, 3.0, 4.0])), [variable()])
    assert kinds(update) == ["WRITE", "TENSOR"]


def test_another_shape_is_the_same_program() -> None:
    def fn(v: Any, g: torch.Tensor) -> None:
        v.addcdiv_(g, g.sqrt() + 1e-8, value=-0.1)

    digests = {
        trace(fn, [variable("v", *shape)], [torch.ones(shape)]).trace.digest
        for shape in [(2,), (3, 4), (1, 2, 3)]
    }
    assert len(digests) == 1


def test_a_bool_says_which_program_is_wanted() -> None:
    def fn(v: Any, g: torch.Tensor, nesterov: bool) -> None:
        v.add_(2 * g if nesterov else g)

    lengths = [len(trace(fn, [variable()], [ones(), one]).program.nodes) for one in (True, False)]
    assert lengths == [2, 1]


def test_a_whole_number_used_as_a_size_is_fixed_for_that_number_only() -> None:
    def fn(v: Any, g: torch.Tensor, dim: int, times: int) -> None:
        for _ in range(times):
            v.add_(g.sum(dim, keepdim=True))

    for dim, times in [(0, 1), (1, 3), (0, 2)]:
        update = trace(fn, [variable()], [ones(), dim, times])
        assert operations(update) == ["sum", "add_"] * times
        assert update.program.nodes[0].arguments[1].list.items[0].integer == dim


@given(st.integers(1, 50), st.floats(0.1, 0.99), st.floats(1e-4, 1.0))
def test_arithmetic_on_numbers_is_recorded_with_pythons_meaning(
    t: int, beta: float, rate: float
) -> None:
    def expected(t: int, beta: float, rate: float) -> float:
        square = math.sqrt(1 - beta**t) + abs(-t) // 2 % 3
        return -rate / square * 2 + math.exp(beta) - math.log(rate)

    update = trace(lambda v, *numbers: v.fill_(expected(*numbers)), [variable()], [t, beta, rate])
    assert evaluated(update) == expected(t, beta, rate)


def evaluated(update: TracedUpdate) -> object:
    from stratagem_proto.programs.operations import evaluate_scalar

    values: list[Any] = list(update.bindings)
    *arithmetic, fill = update.program.nodes
    for node in arithmetic:
        operands = [
            values[one.value] if one.WhichOneof("kind") == "value" else (one.integer or one.number)
            for one in node.arguments
        ]
        values.append(evaluate_scalar(node.operation, *operands))
    return values[fill.arguments[1].value]


def test_numpy_functions_take_numbers() -> None:
    update = trace(lambda v, beta: v.mul_(np.sqrt(1 - beta)), [variable()], [0.5])
    assert operations(update) == ["sub", "sqrt", "mul_"]


def test_a_number_can_become_a_tensor() -> None:
    def fn(v: Any, rate: float) -> None:
        v.add_(torch.tensor(rate)).add_(torch.full_like(v, rate))
        v.copy_(torch.where(v > rate, v, rate))

    assert "where" in operations(trace(fn, [variable()], [0.5]))

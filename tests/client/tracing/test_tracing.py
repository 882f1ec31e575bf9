"""Recordings of update functions, and when they are traced again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stratagem import IndexedSlices, Variable
from stratagem._tracing.trace import trace
from stratagem_proto.errors import UpdateFunctionError
from tests.client.tracing.traced import kinds, numbers, ones, operations, variable


def test_assignments_and_in_place_methods_write_the_variable() -> None:
    def fn(v: Any, g: torch.Tensor) -> Any:
        v.add_(g)
        v.mul_(2)
        torch.sqrt_(v)
        return v.assign_sub(g)

    update = trace(fn, [v := variable()], [g := ones()])
    assert operations(update) == ["add_", "mul_", "sqrt_", "sub_"]
    assert kinds(update) == ["WRITE", "TENSOR"]
    assert update.bindings[0] is v and update.bindings[1] is g
    assert update.written == [v]
    assert update.result() is v


def test_nothing_is_written_while_it_is_traced() -> None:
    v = variable()
    trace(lambda v: v.assign_add(ones()), [v])
    assert torch.equal(v.value(), torch.zeros(3, 4))


def test_slots_are_written_or_only_read() -> None:
    def fn(v: Any, m: Any, frozen: Any) -> list[Any]:
        m.assign(0.9 * m + frozen)
        return [v.assign_sub(m), None, {"m": m}]

    v, m, frozen = variable("v"), variable("m"), variable("frozen")
    update = trace(fn, [v], [m, frozen])
    assert [getattr(one, "name", one) for one in update.bindings] == [
        "m",
        "frozen",
        "v",
    ]
    assert kinds(update) == ["WRITE", "READ", "WRITE"]
    assert update.result() == [v, None, {"m": m}]


def test_a_variable_is_one_input_however_it_is_reached() -> None:
    v = variable()
    update = trace(lambda first, second: first.assign_add(second + v), [v], [v])
    assert kinds(update) == ["WRITE"]


def test_a_snapshot_does_not_change_with_the_variable() -> None:
    def fn(v: Any) -> None:
        before = v.read_value()
        v.add_(1)
        v.mul_(before)

    assert operations(trace(fn, [variable()])) == ["clone", "add_", "mul_"]


def test_what_has_no_effect_is_left_out() -> None:
    def fn(v: Any, g: torch.Tensor, unused: float) -> None:
        (g * unused).exp()
        scratch = g.clone()
        scratch.add_(1)
        v.add_(scratch)
        scratch.mul_(2)

    update = trace(fn, [variable()], [ones(), 3.0])
    assert operations(update) == ["clone", "add_", "add_"]
    assert numbers(update) == []


def test_the_gradient_of_a_captured_parameter_is_sent() -> None:
    parameter = torch.nn.Parameter(ones())
    parameter.grad = 2 * ones()
    update = trace(lambda v: v.sub_(parameter.grad), [variable()])
    assert update.bindings[1] is parameter.grad


def test_variables_in_lists_are_operands() -> None:
    def fn(v: Any, m: Any) -> None:
        v.add_(torch.stack([v, m]).sum(0))

    update = trace(fn, [variable("v")], [variable("m")])
    assert operations(update) == ["stack", "sum", "add_"]


def test_rows_are_added_where_they_belong() -> None:
    rows = IndexedSlices(torch.ones(2, 4), torch.tensor([0, 2]))
    update = trace(lambda v, g: v.scatter_sub(g), [variable()], [rows])
    assert operations(update) == ["index_add_"]


def test_a_variable_elsewhere_is_sent_as_a_tensor() -> None:
    v, other = variable("v"), variable("other")
    update = trace(lambda v: v.assign_add(other), [v], is_hosted=lambda one: one is not other)
    assert kinds(update) == ["WRITE", "TENSOR"]
    assert update.bindings[1] is other


def test_a_variable_elsewhere_is_not_written() -> None:
    v, other = variable("v"), variable("other")

    def fn(v: Any) -> None:
        v.add_(1)
        other.assign_add(v)

    with pytest.raises(UpdateFunctionError, match="other is written in place"):
        trace(fn, [v], is_hosted=lambda one: one is not other)


def test_locations_are_lines_of_the_function() -> None:
    def fn(v: Any) -> None:
        v.add_(1)

    (node,) = trace(fn, [variable()]).program.nodes
    line = fn.__code__.co_firstlineno + 1
    assert node.location == f"test_tracing.py:{line}"


def test_a_function_is_not_traced_again_for_other_numbers_and_tensors() -> None:
    def fn(v: Any, g: torch.Tensor, rate: float) -> None:
        v.sub_(rate * g)

    first = trace(fn, [variable()], [ones(), 0.5])
    again = trace(fn, [variable()], [ones(), 0.25])
    assert again.trace is first.trace
    assert (numbers(first), numbers(again)) == ([0.5], [0.25])


@pytest.mark.parametrize(
    "arguments",
    [
        [torch.ones(3, 4, dtype=torch.float64), 0.5],
        [torch.ones(4), 0.5],
        [ones(), 1],
        [ones(), variable("rate", 4)],
        [variable("v"), 0.5],
    ],
)
def test_a_function_is_traced_again_for_other_types(arguments: list[Any]) -> None:
    def fn(v: Any, g: Any, rate: Any) -> None:
        v.sub_(rate * g)

    first = trace(fn, [variable()], [ones(), 0.5])
    assert trace(fn, [variable()], arguments).trace is not first.trace


def test_a_function_may_tell_variables_apart_by_name() -> None:
    def fn(v: Any, g: torch.Tensor) -> None:
        v.sub_(g if v.name.endswith("bias") else g + 0.1 * v)

    for name, length in [("weight", 3), ("bias", 1), ("weight", 3)]:
        assert len(trace(fn, [variable(name)], [ones()]).program.nodes) == length


def test_the_same_tensor_twice_is_another_case_than_two() -> None:
    def fn(v: Any, a: torch.Tensor, b: torch.Tensor) -> None:
        v.sub_(a * b)

    same = ones()
    assert kinds(trace(fn, [variable()], [ones(), ones()])) == ["TENSOR"] * 2 + ["WRITE"]
    assert kinds(trace(fn, [variable()], [same, same])) == ["TENSOR", "WRITE"]


def test_what_cannot_be_foreseen_is_traced_each_time() -> None:
    rates = iter([2.0, 3.0])

    def fn(v: Any) -> None:
        v.mul_(next(rates))

    constants = [trace(fn, [variable()]).program.nodes[0].arguments[1].number for _ in range(2)]
    assert constants == [2.0, 3.0]


def test_a_changed_flag_of_a_captured_object_is_seen() -> None:
    rule = SimpleNamespace(nesterov=True)

    def fn(v: Any, g: torch.Tensor) -> None:
        v.sub_(g + g if rule.nesterov else g)

    lengths = []
    for rule.nesterov in (True, False):
        lengths.append(len(trace(fn, [variable()], [ones()]).program.nodes))
    assert lengths == [2, 1]


class Rule:
    """An optimizer of the user's own, in the usual form."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def apply(self, v: Any, g: torch.Tensor) -> None:
        v.sub_(self.rate * g)


def test_threads_trace_at_the_same_time() -> None:
    start = threading.Barrier(4)

    def traced(thread: int) -> list[list[object]]:
        start.wait(timeout=60)
        names: list[list[object]] = []
        for repetition in range(20):
            v = variable(f"{thread}/{repetition}")
            update = trace(Rule(thread).apply, [v], [ones()])
            names.append([*(one.name for one in update.written), *numbers(update)])
        return names

    with ThreadPoolExecutor(4) as pool:
        for thread, names in enumerate(pool.map(traced, range(4))):
            assert names == [[f"{thread}/{i}", thread] for i in range(20)]


def test_modules_of_the_user_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.graph_programs as settings

    def fn(v: Any) -> None:
        v.mul_(settings.RATE)  # type: ignore[attr-defined]

    digests = set()
    for rate in (0.5, 0.25):
        monkeypatch.setattr(settings, "RATE", rate, raising=False)
        update = trace(fn, [variable()])
        assert numbers(update) == [rate]
        digests.add(update.trace.digest)
    assert len(digests) == 1


def test_the_stand_in_is_a_variable_to_isinstance() -> None:
    def fn(v: Any) -> None:
        assert isinstance(v, Variable)
        assert (v.name, v.shape, v.dtype) == ("v", torch.Size([3, 4]), torch.float32)
        v.add_(1)

    trace(fn, [variable()])


def test_a_wrapper_of_a_torch_function_is_looked_into() -> None:
    def scaling(factor: float) -> Callable[..., torch.Tensor]:
        @functools.wraps(torch.nn.functional.relu)
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.relu(x) * factor

        return scaled

    for factor in (2.0, 3.0):
        scaled = scaling(factor)
        update = trace(lambda v, scaled=scaled: v.copy_(scaled(v)), [variable()])
        assert numbers(update) == [factor]

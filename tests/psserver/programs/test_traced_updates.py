"""Update functions traced by the client and run by the server's code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem import IndexedSlices, Variable
from stratagem._core.variables import LocalVariable
from stratagem._tracing.trace import TracedUpdate, trace
from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import GraphCache


class Host:
    """Keeps the values of variables and runs programs on them."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self.cache = GraphCache()

    def variable(self, name: str, value: torch.Tensor) -> Variable:
        """A variable whose value on the client says nothing."""
        self.values[name] = value.clone()
        unknown = torch.zeros_like(value)
        return LocalVariable(unknown, name=name, trainable=False)

    def update(self, update: TracedUpdate) -> None:
        bindings = [
            self.values[one.name] if isinstance(one, Variable) else one for one in update.bindings
        ]
        prepare(self.cache.compiled(update.program), bindings).run()


def adam(v: Any, g: torch.Tensor, m: Any, s: Any, step: Any, rate: float) -> None:
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    m.assign(beta1 * m + (1 - beta1) * g)
    s.assign(beta2 * s + (1 - beta2) * g * g)
    corrected = s.sqrt() / torch.sqrt(1 - beta2**step)
    v.assign_sub(rate / (1 - beta1**step) * m / (corrected + eps))


def adam_by_numbers(rate: float, t: int, betas: Sequence[float]) -> Callable[..., Any]:
    beta1, beta2 = betas

    def update(v: Any, g: torch.Tensor, m: Any, s: Any) -> Any:
        m.lerp_(g, 1 - beta1)
        s.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (s.sqrt() / math.sqrt(1 - beta2**t)).add_(1e-8)
        return v.addcdiv_(m, root, value=-rate / (1 - beta1**t))

    return update


def test_adam_by_hand_equals_torchs_and_is_one_program() -> None:
    """The learning rate changes in every step; the variables differ in shape."""
    torch.manual_seed(0)
    host, shapes = Host(), [(7, 5), (5,), (), (2, 3, 4)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = torch.optim.Adam(parameters, betas=(0.8, 0.95))
    variables = [host.variable(f"v{i}", p.data) for i, p in enumerate(parameters)]
    slots = [
        [host.variable(f"v{i}/{key}", torch.zeros(p.shape)) for key in "ms"]
        for i, p in enumerate(parameters)
    ]
    for t in range(1, 31):
        rate = optimizer.param_groups[0]["lr"] = 0.1 / math.sqrt(t)
        for parameter, variable, state in zip(parameters, variables, slots, strict=True):
            parameter.grad = torch.randn(parameter.shape)
            fn = adam_by_numbers(rate, t, (0.8, 0.95))
            host.update(trace(fn, [variable], [parameter.grad, *state]))
        optimizer.step()
    for index, parameter in enumerate(parameters):
        torch.testing.assert_close(host.values[f"v{index}"], parameter.data, rtol=1e-6, atol=0)
    assert host.cache.compilations == 1


def test_adam_with_a_step_counter_on_the_server() -> None:
    torch.manual_seed(1)
    host, parameter = Host(), torch.nn.Parameter(torch.randn(6, 3))
    optimizer = torch.optim.Adam([parameter])
    v = host.variable("v", parameter.data)
    m, s = (host.variable(key, torch.zeros(6, 3)) for key in "ms")
    step = host.variable("step", torch.zeros((), dtype=torch.float64))
    for t in range(25):
        rate = optimizer.param_groups[0]["lr"] = 0.1 * 0.9**t
        parameter.grad = torch.randn(6, 3)
        host.update(trace(lambda: step.assign_add(1.0)))
        host.update(trace(adam, [v], [parameter.grad, m, s, step, rate]))
        optimizer.step()
    torch.testing.assert_close(host.values["v"], parameter.data, rtol=1e-6, atol=1e-7)
    assert host.values["step"] == 25
    assert host.cache.compilations == 2


def test_adagrad_on_rows_equals_torchs() -> None:
    torch.manual_seed(2)
    host, parameter = Host(), torch.nn.Parameter(torch.randn(20, 3))
    optimizer = torch.optim.Adagrad([parameter], lr=0.5)
    table = host.variable("table", parameter.data)
    total = host.variable("total", torch.zeros(20, 3))

    def adagrad(table: Any, g: IndexedSlices, total: Any) -> None:
        total.value().index_add_(0, g.indices, g.values * g.values)
        root = total[g.indices].sqrt() + 1e-10
        table.scatter_sub(IndexedSlices(0.5 * g.values / root, g.indices))

    for size in (1, 4, 7, 4):
        rows = torch.randperm(20)[:size]
        gradient = IndexedSlices(torch.randn(size, 3), rows, (20, 3))
        parameter.grad = gradient.to_dense()
        optimizer.step()
        host.update(trace(adagrad, [table], [gradient, total]))
    torch.testing.assert_close(host.values["table"], parameter.data)
    assert host.cache.compilations == 1


def test_an_index_out_of_range_is_refused_by_line_and_changes_nothing() -> None:
    host = Host()
    table = host.variable("table", torch.ones(4, 2))
    rows = IndexedSlices(torch.ones(2, 2), torch.tensor([1, 4]))

    def fn(table: Any, g: IndexedSlices) -> None:
        table.mul_(2)
        table.scatter_add(g)

    line = fn.__code__.co_firstlineno + 2
    with pytest.raises(InvalidArgumentError, match=f"test_traced_updates.py:{line}"):
        host.update(trace(fn, [table], [rows]))
    assert host.values["table"].tolist() == [[1.0, 1.0]] * 4


def test_a_tensor_elsewhere_in_torch_is_fine() -> None:
    """Composite functions of torch become several operations."""
    host = Host()
    weight = host.variable("weight", torch.arange(6.0).reshape(2, 3))

    def fn(weight: Any, x: torch.Tensor) -> None:
        normal = torch.nn.functional.normalize(weight.value(), dim=1)
        scores = torch.einsum("ij,kj->ik", x, normal).softmax(dim=0)
        weight.assign(scores.std(0, keepdim=True).t().expand(2, 3).contiguous() * normal)

    x = torch.randn(5, 3)
    host.update(trace(fn, [weight], [x]))
    local = LocalVariable(torch.arange(6.0).reshape(2, 3), trainable=False)
    fn(local, x)
    torch.testing.assert_close(host.values["weight"], local.value())


# --- any function ---------------------------------------------------------------

Operation = Callable[[Any, Any, float], Any]


def partly(change: Callable[..., object]) -> Operation:
    """Changes a tensor through a view of it."""

    def operation(a: Any, b: Any, rate: float) -> Any:
        change(a, b.clone(), rate)
        return a

    return operation


OPERATIONS: dict[str, Operation] = {
    "negated": lambda a, b, rate: -a,
    "sum": lambda a, b, rate: a + rate * b,
    "product": lambda a, b, rate: (1 - rate) * a * b,
    "tanh": lambda a, b, rate: a.tanh(),
    "larger": lambda a, b, rate: torch.where(a > b, a, b),
    "copy": lambda a, b, rate: a.clone(),
    "broadcast": lambda a, b, rate: a.sum(1, keepdim=True).expand_as(b) + b[0],
    "added": lambda a, b, rate: a.add_(b.clone(), alpha=rate),
    "scaled": lambda a, b, rate: a.mul_(rate**2),
    "rows": partly(lambda a, b, rate: a[1:].sub_(b[:2])),
    "row": partly(lambda a, b, rate: a.__setitem__(0, b[1])),
    "transposed": partly(lambda a, b, rate: a.t().add_(b.t() / (2 - rate))),
    "flat": partly(lambda a, b, rate: a.view(-1)[::2].copy_(b.view(-1)[1::2])),
    "indexed": partly(lambda a, b, rate: a.index_add_(0, torch.tensor([0, 2]), b[:2])),
}


def updating(names: Sequence[tuple[str, int, int]]) -> Callable[..., None]:
    """A function that does these operations on what it has so far."""

    def fn(v: Any, m: Any, g: torch.Tensor, rate: float) -> None:
        pool = [v.value(), m.value(), g.clone()]
        for name, i, j in names:
            pool.append(OPERATIONS[name](pool[i % len(pool)], pool[j % len(pool)], rate))
        v.assign_add(pool[-1])

    return fn


@given(
    names=st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9)),
        max_size=12,
    ),
    rate=st.floats(-2, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_program_does_what_the_function_does(
    names: list[tuple[str, int, int]], rate: float, seed: int
) -> None:
    v, m, g = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(seed))
    host, fn = Host(), updating(names)
    host.update(trace(fn, [host.variable("v", v)], [host.variable("m", m), g, rate]))
    local_v, local_m = (
        LocalVariable(value, name=name, trainable=False) for name, value in [("v", v), ("m", m)]
    )
    fn(local_v, local_m, g, rate)
    for name, local in [("v", local_v), ("m", local_m)]:
        torch.testing.assert_close(host.values[name], local.value(), rtol=0, atol=0, equal_nan=True)

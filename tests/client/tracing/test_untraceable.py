"""Update functions that cannot be sent to a server."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stratagem._core.variables import LocalVariable
from stratagem._tracing.trace import trace
from stratagem_proto.errors import UpdateFunctionError
from stratagem_proto.programs.graph_program import MAX_OUTPUT_BYTES
from tests.client.tracing.traced import ones, variable

GLOBAL_RATE = 0.5


def numpy_of_argument(v: Any, g: torch.Tensor, rate: float) -> None:
    v.assign(torch.from_numpy(g.numpy()))  # HERE


def numpy_of_variable(v: Any, g: torch.Tensor, rate: float) -> None:
    v.assign_add(v.numpy())  # HERE


def array_of_argument(v: Any, g: torch.Tensor, rate: float) -> None:
    v.assign(np.asarray(g))  # HERE


def tolist(v: Any, g: torch.Tensor, rate: float) -> None:
    v.assign(g.tolist())  # HERE


def item(v: Any, g: torch.Tensor, rate: float) -> None:
    v.mul_(g.norm().item())  # HERE


def float_of_tensor(v: Any, g: torch.Tensor, rate: float) -> None:
    v.mul_(float(g.sum()))  # HERE


def float_of_variable(v: Any, g: torch.Tensor, rate: float) -> None:
    v.mul_(float(v[0, 0]))  # HERE


def data(v: Any, g: torch.Tensor, rate: float) -> None:
    v.data = g  # HERE


def data_of_the_tensor(v: Any, g: torch.Tensor, rate: float) -> None:
    v.value().data = g  # HERE


def branch(v: Any, g: torch.Tensor, rate: float) -> None:
    if g.norm() > 1:  # HERE
        v.assign(g)


def branch_on_variable(v: Any, g: torch.Tensor, rate: float) -> None:
    while (v > 0).any():  # HERE
        v.sub_(1)


def branch_on_number(v: Any, g: torch.Tensor, rate: float) -> None:
    if rate != 0:  # HERE
        v.sub_(g)


def maximum_of_number(v: Any, g: torch.Tensor, rate: float) -> None:
    v.sub_(g, alpha=max(rate, 0.1))  # HERE


def float_of_number(v: Any, g: torch.Tensor, rate: float) -> None:
    v.sub_(g, alpha=float(rate))  # HERE


def random_noise(v: Any, g: torch.Tensor, rate: float) -> None:
    v.add_(torch.randn_like(g))  # HERE


def in_place_randomness(v: Any, g: torch.Tensor, rate: float) -> None:
    v.normal_()  # HERE


def uninitialised(v: Any, g: torch.Tensor, rate: float) -> None:
    v.copy_(torch.empty(3, 4))  # HERE


def file(v: Any, g: torch.Tensor, rate: float) -> None:
    v.copy_(torch.from_file("/etc/passwd", size=12))  # HERE


def mask(v: Any, g: torch.Tensor, rate: float) -> None:
    v.value()[g > 0] = 0.0  # HERE


def iteration(v: Any, g: torch.Tensor, rate: float) -> None:
    for row in v:  # HERE
        row.add_(1)


def write_to_argument(v: Any, g: torch.Tensor, rate: float) -> None:
    v.add_(g.mul_(rate))  # HERE


def wrong_shape(v: Any, g: torch.Tensor, rate: float) -> None:
    v.assign(g[:2])  # HERE


def wrong_broadcast(v: Any, g: torch.Tensor, rate: float) -> None:
    v.add_(g[:2])  # HERE


def wrong_dtype(v: Any, g: torch.Tensor, rate: float) -> None:
    v.assign(g.double())  # HERE


def deep_copy(v: Any, g: torch.Tensor, rate: float) -> None:
    v.add_(copy.deepcopy(g))  # HERE


REFUSED = [
    numpy_of_argument,
    numpy_of_variable,
    array_of_argument,
    tolist,
    item,
    float_of_tensor,
    float_of_variable,
    data,
    data_of_the_tensor,
    branch,
    branch_on_variable,
    branch_on_number,
    maximum_of_number,
    float_of_number,
    random_noise,
    in_place_randomness,
    uninitialised,
    file,
    mask,
    iteration,
    write_to_argument,
    wrong_shape,
    wrong_broadcast,
    wrong_dtype,
    deep_copy,
]


@pytest.mark.parametrize("fn", REFUSED)
def test_what_a_server_cannot_do_is_refused_by_file_and_line(
    fn: Callable[..., Any],
) -> None:
    lines, start = inspect.getsourcelines(fn)
    line = start + next(i for i, one in enumerate(lines) if "# HERE" in one)
    with pytest.raises(UpdateFunctionError) as caught:
        trace(fn, [variable()], [ones(), 0.5])
    assert caught.value.location == f"{__file__}:{line}"
    assert str(caught.value).startswith(f"{__file__}:{line}: ")
    assert "; " in str(caught.value)  # what happened; what to do


def test_a_sparse_tensor_is_refused_with_the_way_to_pass_its_rows() -> None:
    gradient = torch.eye(3, 4).to_sparse(1)
    with pytest.raises(UpdateFunctionError, match="from_sparse"):
        trace(lambda v, g: v.add_(g), [variable()], [gradient])


def test_a_captured_tensor_keeps_its_contents_to_itself() -> None:
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    for reveal in (torch.Tensor.tolist, torch.Tensor.numpy, lambda one: one[0].item()):
        with pytest.raises(UpdateFunctionError, match="needs the contents"):
            trace(lambda v, reveal=reveal: v.mul_(reveal(mask)[0]), [variable()])


def nothing(v: Any) -> None:
    v + 1


def new_local(v: Any) -> None:
    v = v - 1


@pytest.mark.parametrize("fn", [nothing, new_local])
def test_a_function_that_never_writes_its_variable_is_refused(
    fn: Callable[..., Any],
) -> None:
    with pytest.raises(UpdateFunctionError, match="never writes variable 'v'") as caught:
        trace(fn, [variable()])
    assert caught.value.location == f"{__file__}:{fn.__code__.co_firstlineno}"


def test_writing_a_slot_alone_is_not_enough() -> None:
    with pytest.raises(UpdateFunctionError, match="never writes variable 'v'"):
        trace(lambda v, m: m.assign_add(v), [variable("v")], [variable("m")])


def test_without_a_first_variable_any_has_to_be_written() -> None:
    step = LocalVariable(torch.tensor(0), name="step")
    update = trace(lambda: step.assign_add(1))
    assert update.written == [step]
    with pytest.raises(UpdateFunctionError, match="never writes a variable"):
        trace(lambda: [step + 1].clear())
    assert trace(lambda: step + 1).trace.only_reads


def test_an_object_of_a_class_of_its_own_cannot_be_returned() -> None:
    with pytest.raises(UpdateFunctionError, match="returns a object, which") as caught:
        trace(lambda v: [v.add_(1), object()], [variable()])
    assert caught.value.location.startswith(__file__)


def test_more_than_is_kept_with_an_answer_cannot_be_returned() -> None:
    wide = torch.zeros(1, MAX_OUTPUT_BYTES // 4 + 1)
    with pytest.raises(UpdateFunctionError, match=r"262148 bytes.*read that after"):
        trace(lambda v, wide: [v.add_(1), wide * 2], [variable()], [wide])


def counter() -> Callable[..., Any]:
    step = 0

    def fn(v: Any) -> None:
        nonlocal step
        step += 1
        v.add_(step)

    return fn


def history() -> Callable[..., Any]:
    seen: list[Any] = []
    return lambda v: seen.append(v.add_(1))


def dictionary() -> Callable[..., Any]:
    state = {"step": 1}

    def fn(v: Any) -> None:
        state["step"] += 1
        v.add_(state["step"])

    return fn


class Rule:
    """An optimizer of the user's own, in the usual form."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def apply(self, v: Any, g: torch.Tensor) -> None:
        v.sub_(self.rate * g)


def attribute() -> Callable[..., Any]:
    rule = Rule(0.5)

    def fn(v: Any) -> None:
        rule.rate *= 0.5
        v.mul_(rule.rate)

    return fn


def global_name() -> Callable[..., Any]:
    def fn(v: Any) -> None:
        global GLOBAL_RATE
        GLOBAL_RATE = GLOBAL_RATE * 2
        v.mul_(GLOBAL_RATE)

    return fn


@pytest.mark.parametrize("changing", [counter, history, dictionary, attribute, global_name])
def test_changing_what_is_captured_is_refused(changing: Callable[[], Any]) -> None:
    fn = changing()
    with pytest.raises(UpdateFunctionError, match="change it outside") as caught:
        trace(fn, [variable()])
    assert caught.value.location == f"{__file__}:{fn.__code__.co_firstlineno}"
    assert GLOBAL_RATE == 0.5


def test_an_error_of_the_function_itself_is_raised_as_it_is() -> None:
    def fn(v: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(fn, [variable()])

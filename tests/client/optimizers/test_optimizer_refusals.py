"""Errors of a DistributedOptimizer for what it cannot do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, InvalidArgumentError, OneDeviceStrategy
from tests.client.one_copy import OneCopy
from tests.client.small_model import BATCHES, assert_same_bytes, current, hosted_model, loss_of


def test_a_parameter_from_outside_of_the_scope_is_refused_with_the_fix() -> None:
    model = nn.Linear(2, 3)
    message = r"parameter 0 of param group 0, of shape \(3, 2\).*strategy\.scope\(\)"
    with OneCopy().scope(), pytest.raises(ValueError, match=message):
        DistributedOptimizer(torch.optim.SGD(model.parameters()))


def test_parameters_of_two_strategies_are_refused() -> None:
    (_, one), (_, other) = hosted_model(), hosted_model()
    both = [*one.parameters(), *other.parameters()]
    with pytest.raises(stratagem.ContextError, match="Mixing different"):
        DistributedOptimizer(torch.optim.SGD(both))


class Adam(torch.optim.Adam):
    """Somebody's own optimizer, of a known name."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, "LBFGS computes the loss several times"),
        (Adam, "steps variables by the optimizers of torch.optim.*Adam is none of"),
        (partial(torch.optim.Adam, capturable=True), "leave capturable out"),
    ],
)
def test_what_servers_cannot_run_is_refused_at_once(make: Any, message: str) -> None:
    _, model = hosted_model()
    with pytest.raises(stratagem.InvalidArgumentError, match=message):
        DistributedOptimizer(make(model.parameters()))


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="wraps a torch"):
        DistributedOptimizer([torch.zeros(1)])  # type: ignore[arg-type]


def test_an_optimizer_that_has_state_is_refused() -> None:
    _, model = hosted_model()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    loss_of(model, BATCHES[0]).backward()
    optimizer.step()
    with pytest.raises(stratagem.FailedPreconditionError, match="load_state_dict"):
        DistributedOptimizer(optimizer)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused(duplicate: Callable[[Any], Any]) -> None:
    _, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters()))
    with pytest.raises(stratagem.InvalidTypeError, match=r"state_dict\(\)"):
        duplicate(optimizer)


def test_a_step_under_another_strategy_names_both() -> None:
    _, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters()))
    other = stratagem.OneDeviceStrategy("CPU:0")
    with pytest.raises(stratagem.ContextError, match=r"OneDevice.* those of .*the lat"):
        other.run(optimizer.step)


def test_a_model_of_no_scope_is_named_wherever_its_parameters_stand() -> None:
    alone = nn.Linear(1, 1)
    with OneDeviceStrategy("CPU:0").scope():
        shared = nn.Linear(1, 1)
    for first, second in ((alone, shared), (shared, alone)):
        parameters = [*first.parameters(), *second.parameters()]
        with pytest.raises(InvalidArgumentError, match=r"no strategy.*inside `with strategy.scope"):
            DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))


def test_an_optimizer_is_wrapped_once() -> None:
    _, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters()))
    with pytest.raises(stratagem.InvalidTypeError, match="this DistributedOptimizer already"):
        DistributedOptimizer(optimizer)


def test_two_wrappers_of_one_optimizer_are_refused() -> None:
    _, model = hosted_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = DistributedOptimizer(optimizer)
    with pytest.raises(stratagem.FailedPreconditionError, match="another DistributedOptimizer"):
        DistributedOptimizer(optimizer)
    first.step()


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_the_wrapped_optimizer_does_not_pretend_to_have_the_state(method: str) -> None:
    _, model = hosted_model()
    inner = torch.optim.Adam(model.parameters())
    optimizer = DistributedOptimizer(inner)
    state = optimizer.state_dict()
    with pytest.raises(stratagem.FailedPreconditionError, match=rf"{method}\(\) of the Distr"):
        getattr(inner, method)(*[state][: method == "load_state_dict"])
    optimizer.load_state_dict(state)


def test_a_param_group_that_the_wrapped_optimizer_gets_later_is_refused_at_the_step() -> None:
    strategy, model = hosted_model()
    inner = torch.optim.SGD(model.first.parameters())
    optimizer = DistributedOptimizer(inner)
    inner.add_param_group({"params": list(model.second.parameters())})
    before = current(strategy, model)

    def step() -> None:
        loss_of(model, BATCHES[0]).backward()
        optimizer.step()

    with pytest.raises(stratagem.FailedPreconditionError, match=r"group 1.*own add_param_group"):
        strategy.run(step)
    assert_same_bytes(current(strategy, model), before)


@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
def test_a_step_that_was_replaced_is_refused_before_and_after_wrapping(is_early: bool) -> None:
    strategy, model = hosted_model()
    inner: Any = torch.optim.SGD(model.parameters())
    replaced = {"step": lambda closure=None: None}
    vars(inner).update(replaced if is_early else {})
    optimizer = DistributedOptimizer(inner)
    vars(inner).update(replaced)

    def step() -> None:
        loss_of(model, BATCHES[0]).backward()
        optimizer.step()

    with pytest.raises(stratagem.UpdateFunctionError, match=r"the step of this SGD was replaced"):
        strategy.run(step)


@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
def test_hooks_of_the_wrapped_optimizer_are_called(is_early: bool) -> None:
    strategy, model = hosted_model()
    inner, called = torch.optim.SGD(model.parameters()), list[str]()

    def register() -> None:
        inner.register_step_pre_hook(lambda *_: called.append("before"))
        inner.register_step_post_hook(lambda *_: called.append("after"))

    if is_early:
        register()
    optimizer = DistributedOptimizer(inner)
    if not is_early:
        register()

    def step() -> None:
        loss_of(model, BATCHES[0]).backward()
        optimizer.step()

    strategy.run(step)
    assert called == ["before", "after"]

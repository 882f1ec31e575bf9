"""Parts of a step of a DistributedOptimizer, and its effects."""

from __future__ import annotations

import gc

import torch
from torch import nn

from stratagem import DistributedOptimizer
from tests.client.one_copy import hosting_in
from tests.client.small_model import BATCHES, hosted_model, loss_of
from tests.waiting import eventually


def test_variables_of_a_step_are_those_that_have_a_gradient_in_it() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step(parts: list[nn.Module]) -> None:
        optimizer.zero_grad()
        sums = [p.sum() for part in parts for p in part.parameters()]
        torch.stack(sums).sum().backward()
        optimizer.step()

    for parts in [model], [model.second], [model], [model]:
        strategy.run(step, args=(parts,))
    whole, part, *again = [step.groups[0] for step in hosting_in(strategy).steps]
    names = [name for name, _ in model.named_parameters()]
    assert [one.name for one in whole.variables] == names
    assert [one.name for one in part.variables] == ["second.weight", "second.bias"]
    # What is sent is found out once.
    assert all(one.variables is whole.variables for one in again)


def test_a_run_leaves_no_garbage() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, BATCHES[0]).backward()
        optimizer.step()

    def garbage() -> int:
        gc.collect()
        gc.disable()
        try:
            strategy.run(step)
            return gc.collect()
        finally:
            gc.enable()

    strategy.run(step)
    # Other threads of this process may leave some now and then.
    eventually(lambda: garbage() == 0)

"""Optimizers that take a single step each, of one prototype."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stratagem_proto.programs.optimizers import OPTIMIZERS, OptimizerRule, values_of
from stratagem_psserver.optimization.torch_rules import Prototype, take_step

DENSE = sorted(OPTIMIZERS.keys() - {"SparseAdam"})


def prototype_of(rule: OptimizerRule) -> Prototype:
    group = rule.cls([torch.zeros(1)], lr=0.1).param_groups[0]  # type: ignore[call-arg]
    return Prototype(rule, values_of(rule, group))


def with_gradient(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.randn(4, 3, generator=generator)
    parameter.grad = torch.randn(4, 3, generator=generator)
    return parameter


@pytest.mark.parametrize("name", DENSE)
def test_optimizers_of_a_prototype_know_nothing_of_each_other(name: str) -> None:
    rule = OPTIMIZERS[name]
    prototype = prototype_of(rule)
    for seed in range(3):
        hosted, local = with_gradient(seed), with_gradient(seed)
        optimizer = prototype.optimizer([hosted], [hosted])
        take_step(optimizer, sparse=False)
        rule.cls([local], lr=0.1).step()  # type: ignore[call-arg]
        assert torch.equal(hosted, local)
        assert set(optimizer.state) <= {hosted}


def test_hooks_of_the_process_have_no_part_in_steps_of_servers() -> None:
    seen: list[object] = []
    handle = register_optimizer_step_post_hook(lambda *step: seen.append(step))
    try:
        parameter = with_gradient(0)
        take_step(prototype_of(OPTIMIZERS["SGD"]).optimizer([parameter], []), False)
        assert not seen
        torch.optim.SGD([parameter], lr=0.1).step()
        assert seen
    finally:
        handle.remove()

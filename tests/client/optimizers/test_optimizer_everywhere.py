"""One training program under every strategy of one process, and under none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stratagem
from stratagem import DistributedOptimizer, PerReplica, Strategy
from tests.client.small_model import BATCHES, assert_same_bytes, loss_of, seeded_model

pytestmark = pytest.mark.usefixtures("four_cpus")

PAIR = ["CPU:0", "CPU:1"]
ALIKE: dict[str, Callable[[], Strategy]] = {
    "default": stratagem.get_strategy,
    "one device": lambda: stratagem.OneDeviceStrategy("CPU:0"),
}
EVERY: dict[str, Callable[[], Strategy]] = {
    **ALIKE,
    "mirrored": lambda: stratagem.MirroredStrategy(PAIR),
    "central storage": lambda: stratagem.CentralStorageStrategy(PAIR, "CPU:2"),
}
Run = Callable[..., Any]


def in_scope(strategy: Strategy) -> Any:
    with strategy.scope():
        return seeded_model()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """One whose biases have a rate of their own."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups: Any = [{"params": weights}, {"params": biases, "lr": 0.02}]
    return torch.optim.Adam(groups, lr=0.05)


def train(model: Any, optimizer: Any, run: Run, replicas: int = 1) -> list[Any]:
    """Trains by closures, with clipping and a schedule; returns the losses."""
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(features: Tensor) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, features)
            loss.backward()
            for group in optimizer.param_groups:
                nn.utils.clip_grad_norm_(group["params"], 0.5)
            return loss

        return optimizer.step(closure).detach()

    losses = []
    for batch in BATCHES:
        parts = batch.chunk(replicas)
        losses.append(run(step, (PerReplica(parts) if replicas > 1 else batch,)))
        schedule.step()
    return losses


def plainly(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return fn(*args)


def trained_plainly() -> tuple[Any, torch.optim.Optimizer]:
    model = seeded_model()
    optimizer = adam(model)
    train(model, optimizer, plainly)
    return model, optimizer


@pytest.mark.parametrize("name", ALIKE)
def test_one_replica_is_plain_torch_to_the_byte(name: str) -> None:
    plain, theirs = trained_plainly()
    strategy = ALIKE[name]()
    model = in_scope(strategy)
    optimizer = DistributedOptimizer(adam(model))
    train(model, optimizer, strategy.run)
    assert_same_bytes(dict(model.state_dict()), dict(plain.state_dict()))
    assert_same_bytes(optimizer.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", ALIKE)
def test_the_state_with_which_an_optimizer_is_built_is_that_of_torch(name: str) -> None:
    """Of those in torch, only Adagrad makes its state when it is built."""

    def adagrad(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), 0.05, initial_accumulator_value=0.5)

    plain = seeded_model()
    train(plain, adagrad(plain), plainly)
    strategy = ALIKE[name]()
    model = in_scope(strategy)
    train(model, DistributedOptimizer(adagrad(model)), strategy.run)
    assert_same_bytes(dict(model.state_dict()), dict(plain.state_dict()))


def test_no_strategy_is_needed_at_all() -> None:
    plain, theirs = trained_plainly()
    model = seeded_model()
    optimizer = DistributedOptimizer(adam(model))
    train(model, optimizer, plainly)
    assert_same_bytes(dict(model.state_dict()), dict(plain.state_dict()))
    assert_same_bytes(optimizer.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", EVERY)
def test_training_learns_and_its_state_goes_on_anywhere(name: str) -> None:
    strategy = EVERY[name]()
    model = in_scope(strategy)
    optimizer = DistributedOptimizer(adam(model))
    losses = train(model, optimizer, strategy.run, strategy.num_replicas_in_sync)
    first, last = (strategy.reduce("mean", losses[i], axis=None) for i in (0, -1))
    assert last < 0.5 * first

    strategy.run(lambda: None)
    state, slots = model.state_dict(), optimizer.state_dict()
    # Torch's own load_state_dict takes the tensors themselves.
    ends = [continued(EVERY[other](), state, copy.deepcopy(slots)) for other in EVERY]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-3, atol=1e-4)


def continued(strategy: Strategy, state: Any, slots: Any) -> list[Tensor]:
    model = in_scope(strategy)
    model.load_state_dict(state)
    optimizer = DistributedOptimizer(adam(model))
    optimizer.load_state_dict(slots)

    def step(features: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model, features).backward()
        optimizer.step()

    for _ in range(3):
        strategy.run(step, (BATCHES[0],))
    strategy.run(lambda: None)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("name", EVERY)
def test_autocast_to_bfloat16_needs_no_gradient_scaler(name: str) -> None:
    strategy = EVERY[name]()
    model = in_scope(strategy)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(features: Tensor) -> tuple[torch.dtype, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(features)
            loss = (output - features.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return output.dtype, loss.detach()

    runs = [strategy.run(step, (BATCHES[0],)) for _ in range(20)]
    assert {dtype for dtype, _ in runs} == {torch.bfloat16}
    first, last = (strategy.reduce("mean", runs[i][1], axis=None) for i in (0, -1))
    assert last < 0.5 * first


def test_a_variable_of_no_strategy_is_stepped_in_place() -> None:
    variable = stratagem.Variable([1.0, 2.0])
    optimizer = DistributedOptimizer(torch.optim.SGD([variable.value()], lr=0.5))
    (variable * variable).sum().backward()
    assert optimizer.step() is None
    assert variable.numpy().tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert variable.grad is None


def test_parameters_of_no_strategy_cannot_be_stepped_under_one() -> None:
    """Mirrored replicas would each step the one copy; the error says what to do."""
    model = nn.Linear(1, 1)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters()))
    strategy = EVERY["mirrored"]()
    fix = r"under .*MirroredStrategy.*outside of every scope.*strategy\.scope\(\)"
    with pytest.raises(stratagem.ContextError, match=fix):
        strategy.run(optimizer.step)
    with strategy.scope(), pytest.raises(stratagem.ContextError, match=fix):
        optimizer.step()


def test_parameters_of_no_strategy_do_not_mix_with_others() -> None:
    mine, theirs = nn.Linear(1, 1), in_scope(EVERY["mirrored"]())
    groups: list[Any] = [{"params": m.parameters()} for m in (mine, theirs)]
    with pytest.raises(stratagem.InvalidArgumentError, match=r"group 1.*no strategy"):
        DistributedOptimizer(torch.optim.SGD(groups))
    with pytest.raises(stratagem.InvalidArgumentError, match=r"group 1.*no strategy"):
        DistributedOptimizer(torch.optim.SGD(groups[::-1]))
    with pytest.raises(stratagem.InvalidArgumentError, match="has no parameters"):
        DistributedOptimizer(torch.optim.SGD([{"params": []}]))

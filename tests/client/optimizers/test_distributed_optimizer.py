"""A DistributedOptimizer against the torch optimizer that it wraps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import stratagem
from stratagem import DistributedOptimizer, PerReplica, ReduceOp
from tests.client.one_copy import OneCopy, hosting_in
from tests.client.small_model import (
    BATCHES,
    STEPS,
    assert_same_bytes,
    current,
    hosted_model,
    loss_of,
    parameters_of,
    seeded_model,
)

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": partial(torch.optim.Adam, weight_decay=0.01),
    "AdamW": partial(torch.optim.AdamW, amsgrad=True),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": partial(torch.optim.RMSprop, centered=True),
    "fused Adam": partial(torch.optim.Adam, fused=True),
}


def in_two_groups(model: nn.Module) -> list[dict[str, Any]]:
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": weights}, {"params": rest, "lr": 0.003}]


Run = Callable[..., Any]


def train(model: Any, optimizer: torch.optim.Optimizer, scheduled: Any, run: Run) -> None:
    """Trains with accumulation, clipping and a schedule of the rate."""
    schedule = torch.optim.lr_scheduler.StepLR(scheduled, 4, gamma=0.5)

    def step(number: int, features: Tensor) -> None:
        loss_of(model, features).backward()
        if number % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

    for number in range(STEPS):
        run(step, args=(number, BATCHES[number]))
        if number % 2:
            schedule.step()


def locally(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return fn(*args)


@pytest.mark.parametrize("scheduled", ["the wrapper", "the wrapped"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_equals_plain_torch_to_the_byte(kind: str, scheduled: str) -> None:
    plain = seeded_model()
    theirs = OPTIMIZERS[kind](in_two_groups(plain), lr=0.05)
    train(plain, theirs, theirs, locally)

    strategy, model = hosted_model()
    wrapped = OPTIMIZERS[kind](in_two_groups(model), lr=0.05)
    mine = DistributedOptimizer(wrapped)
    of_schedule = {"the wrapper": mine, "the wrapped": wrapped}[scheduled]
    train(model, mine, of_schedule, strategy.run)

    assert_same_bytes(current(strategy, model), parameters_of(plain))
    assert_same_bytes(mine.state_dict(), theirs.state_dict())


def test_two_replicas_on_halves_equal_one_on_the_whole() -> None:
    plain = seeded_model()
    theirs = torch.optim.Adam(plain.parameters())
    strategy, model = hosted_model(replicas=2)
    mine = DistributedOptimizer(torch.optim.Adam(model.parameters()))

    def step(model: Any, optimizer: torch.optim.Optimizer, features: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model, features).backward()
        optimizer.step()

    for batch in BATCHES:
        step(plain, theirs, batch)
        strategy.run(step, args=(model, mine, PerReplica(batch.chunk(2))))
    torch.testing.assert_close(current(strategy, model), parameters_of(plain))


@pytest.mark.parametrize(
    ("reduce_op", "change"), [(ReduceOp.MEAN, 1.5), ("sum", 3.0), ("MEAN", 1.5)]
)
def test_gradients_of_replicas_are_averaged_or_added(reduce_op: Any, change: float) -> None:
    strategy, model = hosted_model(replicas=2)
    before = model.second.bias.detach().clone()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), reduce_op)

    def step(factor: float) -> None:
        (model.second.bias * factor).sum().backward()
        optimizer.step()

    strategy.run(step, args=(PerReplica([1.0, 2.0]),))
    current(strategy, model)
    assert torch.equal(model.second.bias, before - change)


def test_a_replica_without_any_gradient_does_not_count_in_the_mean() -> None:
    strategy, model = hosted_model(replicas=2)
    before = model.second.bias.detach().clone()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step(has_data: bool) -> None:
        if has_data:
            (model.second.bias * 3).sum().backward()
        optimizer.step()

    strategy.run(step, args=(PerReplica([False, True]),))
    (made,) = hosting_in(strategy).steps
    assert made.replicas == 1
    current(strategy, model)
    assert torch.equal(model.second.bias, before - 3)


def test_a_gradient_that_one_taking_part_lacks_is_zero_in_the_mean() -> None:
    strategy, model = hosted_model(replicas=2)
    before = model.second.bias.detach().clone()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step(first: bool) -> None:
        parameter = model.second.bias if first else model.first.bias
        parameter.sum().backward()
        optimizer.step()

    strategy.run(step, args=(PerReplica([True, False]),))
    current(strategy, model)
    assert torch.equal(model.second.bias, before - 0.5)


def test_a_step_without_gradients_is_told_to_the_strategy_all_the_same() -> None:
    strategy, model = hosted_model()
    before = current(strategy, model)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    strategy.run(lambda: optimizer.step())
    (made,) = hosting_in(strategy).steps
    assert (made.replicas, list(made.updates())) == (0, [])
    assert_same_bytes(current(strategy, model), before)


def test_a_closure_computes_the_loss_of_its_replica() -> None:
    strategy, model = hosted_model(replicas=2)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(features: Tensor) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, features)
            loss.backward()
            return loss

        with torch.no_grad():
            return optimizer.step(closure)

    losses = strategy.run(step, args=(PerReplica(BATCHES[0].chunk(2)),))
    reference = seeded_model()
    for mine, half in zip(losses.values, BATCHES[0].chunk(2), strict=True):
        assert torch.equal(mine, loss_of(reference, half))


def test_zero_grad_clears_the_running_replica_only() -> None:
    strategy, model = hosted_model(replicas=2)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def gradients_left(clear: bool) -> bool:
        model.second.bias.sum().backward()
        if clear:
            optimizer.zero_grad()
        return model.second.bias.grad is not None

    left = strategy.run(gradients_left, args=(PerReplica([True, False]),))
    assert left.values == (False, True)
    optimizer.zero_grad(set_to_none=False)
    grads = strategy.run(lambda: model.second.bias.grad)
    assert [None if g is None else g.item() for g in grads.values] == [None, 0.0]
    optimizer.zero_grad()
    assert strategy.run(lambda: model.second.bias.grad) is None


def test_param_groups_show_each_replica_its_own_leaves() -> None:
    strategy, model = hosted_model(replicas=2)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def same() -> list[bool]:
        (group,) = optimizer.param_groups
        seen = group["params"]
        pairs = zip(seen, model.parameters(), strict=True)
        every = all(a is b for a, b in pairs)
        return [every, seen[-1] is model.unused.bias, seen[:1][0] is model.first.weight]

    assert strategy.run(same) == [True, True, True]
    assert type(copy.deepcopy(optimizer.param_groups[0]["params"])) is list


def test_a_changed_hyperparameter_is_part_of_the_next_step() -> None:
    strategy, model = hosted_model()
    wrapped = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(wrapped)
    optimizer.param_groups[0]["lr"] = 0.2
    assert wrapped.param_groups[0]["lr"] == 0.2
    strategy.run(lambda: optimizer.step())
    wrapped.param_groups[0]["momentum"] = 0.5
    strategy.run(lambda: optimizer.step())
    first, second = (s.groups[0].hyperparameters for s in hosting_in(strategy).steps)
    assert (first["lr"], first["momentum"]) == (0.2, 0)
    assert (second["lr"], second["momentum"]) == (0.2, 0.5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_variable_is_optimized_by_its_value(replicas: int) -> None:
    strategy, model = hosted_model(replicas)
    with strategy.scope():
        bias = stratagem.Variable([1.0, 2.0], name="free")
        optimizer = DistributedOptimizer(
            torch.optim.SGD([*model.parameters(), bias.value()], lr=1.0)
        )

    def step(factor: float) -> float:
        optimizer.zero_grad()
        (bias * factor).sum().backward()
        optimizer.step()
        assert bias.grad is not None
        return bias.grad[0].item()

    factors = PerReplica([1.0, 3.0][:replicas])
    gradients = strategy.run(step, args=(factors,))
    assert strategy.experimental_local_results(gradients) == (1.0, 3.0)[:replicas]
    mean = sum(factors.values) / replicas
    assert bias.numpy().tolist() == [1.0 - mean, 2.0 - mean]


def test_schedulers_and_hooks_see_an_ordinary_optimizer() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.4))
    seen: list[object] = []
    optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append(opt))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    strategy.run(lambda: optimizer.step())
    schedule.step(1.0)
    schedule.step(2.0)
    assert seen == [optimizer]
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.04)
    assert "lr: 0.04" in repr(optimizer)


def test_hooks_of_all_optimizers_are_called() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.4))
    seen: list[object] = []
    hooks = [
        register_optimizer_step_pre_hook(lambda opt, args, kwargs: seen.append(opt)),
        register_optimizer_step_post_hook(lambda opt, args, kwargs: seen.append(opt)),
    ]
    strategy.run(lambda: optimizer.step())
    for hook in hooks:
        hook.remove()
    strategy.run(lambda: optimizer.step())
    assert seen == [optimizer, optimizer]


def test_a_profiler_sees_steps_and_that_gradients_are_cleared() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.4))

    def step() -> None:
        optimizer.zero_grad()
        optimizer.step()

    with torch.autograd.profiler.profile() as profiled:
        strategy.run(step)
    found = {event.name for event in profiled.function_events or ()}
    assert found >= {
        "Optimizer.step#DistributedOptimizer.step",
        "Optimizer.zero_grad#DistributedOptimizer.zero_grad",
    }


def test_parameters_that_are_put_in_the_place_of_others_are_trained() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD([model.first.weight], lr=1.0))

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    strategy.run(step)
    optimizer.param_groups[0]["params"][0] = model.first.bias
    strategy.run(step)
    optimizer.param_groups[0]["params"].append(model.first.weight)
    strategy.run(step)
    names = [
        [update.variable.name for update in step.updates()] for step in hosting_in(strategy).steps
    ]
    weight, bias = "first.weight", "first.bias"
    assert names == [[weight], [bias], [bias, weight]]


def test_a_group_added_later_is_trained() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.first.parameters(), lr=1.0))
    optimizer.add_param_group({"params": model.second.parameters(), "lr": 0.5})
    before = model.second.bias.detach().clone()

    def step() -> None:
        model.second.bias.sum().backward()
        optimizer.step()

    strategy.run(step)
    current(strategy, model)
    assert torch.equal(model.second.bias, before - 0.5)
    with pytest.raises(stratagem.InvalidArgumentError, match="param group 2"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert len(optimizer.param_groups) == 2


def test_sparse_gradients_stay_sparse() -> None:
    strategy = OneCopy(2)
    with strategy.scope():
        table = nn.Embedding(6, 2, sparse=True)
        optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    before = table.weight.detach().clone()

    def step(ids: Tensor) -> None:
        table(ids).sum().backward()
        optimizer.step()

    strategy.run(step, args=(PerReplica([torch.tensor([1, 2]), torch.tensor([2])]),))
    (update,) = hosting_in(strategy).steps[0].updates()
    assert update.total().is_sparse
    strategy.run(lambda: None)
    changed = (before - table.weight)[:, 0]
    torch.testing.assert_close(changed, torch.tensor([0, 0.5, 1, 0, 0, 0]))

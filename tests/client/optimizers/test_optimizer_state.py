"""The state of a DistributedOptimizer, in the format of torch."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stratagem import DistributedOptimizer, FailedPreconditionError
from tests.client.one_copy import hosting_in
from tests.client.small_model import (
    BATCHES,
    assert_same_bytes,
    current,
    hosted_model,
    loss_of,
    parameters_of,
    seeded_model,
)


def test_a_state_dict_moves_between_plain_torch_and_a_strategy() -> None:
    plain = seeded_model()
    theirs = torch.optim.Adam(plain.parameters(), lr=0.05)
    for batch in BATCHES[:3]:
        theirs.zero_grad()
        loss_of(plain, batch).backward()
        theirs.step()

    strategy, model = hosted_model()
    mine = DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.9))
    model.load_state_dict(plain.state_dict())
    mine.load_state_dict(theirs.state_dict())
    assert mine.param_groups[0]["lr"] == 0.05
    assert_same_bytes(mine.state_dict(), theirs.state_dict())
    assert not mine.state

    def step(batch: Tensor) -> None:
        mine.zero_grad()
        loss_of(model, batch).backward()
        mine.step()

    for batch in BATCHES[3:6]:
        strategy.run(step, args=(batch,))
        theirs.zero_grad()
        loss_of(plain, batch).backward()
        theirs.step()
    assert_same_bytes(current(strategy, model), parameters_of(plain))

    back = torch.optim.Adam(seeded_model().parameters())
    back.load_state_dict(mine.state_dict())
    assert_same_bytes(back.state_dict(), theirs.state_dict())


def test_loading_a_state_without_entries_forgets_the_old_ones() -> None:
    strategy, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
    fresh = optimizer.state_dict()

    def step() -> None:
        loss_of(model, BATCHES[0]).backward()
        optimizer.step()

    strategy.run(step)
    assert optimizer.state_dict()["state"]
    optimizer.load_state_dict(fresh)
    assert optimizer.state_dict()["state"] == {}


CHANGES: dict[str, Callable[[torch.optim.Optimizer, Tensor], object]] = {
    "cleared": lambda optimizer, _: optimizer.state.clear(),
    "assigned": lambda optimizer, _: setattr(optimizer, "state", defaultdict(dict)),
    "of a parameter, assigned": lambda optimizer, weight: optimizer.state.update({weight: {}}),
    "of a parameter, dropped": lambda optimizer, weight: optimizer.state.pop(weight, None),
    "an entry": lambda optimizer, weight: optimizer.state[weight].update(step=torch.tensor(0.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_state_that_would_be_lost_is_refused(change: str) -> None:
    strategy, model = hosted_model()
    weight = next(model.parameters())
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))

    def step() -> None:
        loss_of(model, BATCHES[0]).backward()
        optimizer.step()

    strategy.run(step)
    before = optimizer.state_dict()
    with pytest.raises(FailedPreconditionError, match=r"'Adam' lives with.*load_state_dict\(\)"):
        CHANGES[change](optimizer, weight)
    assert len(optimizer.state[weight]) == 0
    assert_same_bytes(optimizer.state_dict(), before)


def test_the_state_of_the_wrapped_optimizer_is_not_changed_in_vain() -> None:
    _, model = hosted_model()
    adam = torch.optim.Adam(model.parameters())
    DistributedOptimizer(adam)
    with pytest.raises(FailedPreconditionError, match="would not reach it"):
        adam.state.clear()


COPIES: dict[str, Callable[[Any], Any]] = {
    "by itself": lambda state: state.copy(),
    "shallow": copy.copy,
    "deep": copy.deepcopy,
    "pickled": lambda state: pickle.loads(pickle.dumps(state)),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_the_state_are_like_it(way: str) -> None:
    _, model = hosted_model()
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
    with pytest.raises(FailedPreconditionError, match="'Adam' lives with"):
        COPIES[way](optimizer.state).clear()


def test_without_a_strategy_the_state_is_the_wrapped_optimizers_own() -> None:
    model = seeded_model()
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
    loss_of(model, BATCHES[0]).backward()
    optimizer.step()
    assert len(optimizer.state) > 0
    optimizer.state = defaultdict(dict)
    assert optimizer.state_dict()["state"] == {}


def test_the_state_of_a_fresh_adagrad_is_that_of_torch() -> None:
    _, model = hosted_model()
    mine = DistributedOptimizer(torch.optim.Adagrad(model.parameters()))
    theirs = torch.optim.Adagrad(seeded_model().parameters())
    assert_same_bytes(mine.state_dict(), theirs.state_dict())


def test_optimizers_are_named_by_class_and_order() -> None:
    strategy, model = hosted_model()
    makers = [torch.optim.Adam, torch.optim.SGD, torch.optim.Adam]
    optimizers = [DistributedOptimizer(m(model.parameters())) for m in makers]
    for optimizer in optimizers:
        strategy.run(optimizer.step)
    names = [step.optimizer for step in hosting_in(strategy).steps]
    assert names == ["Adam", "SGD", "Adam_1"]

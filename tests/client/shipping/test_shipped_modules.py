"""Modules on workers, and changes in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stratagem._shipping.kinds import Parcel
from tests.client.shipping.coordination import Coordination, Scaled, coordinating
from tests.client.small_model import seeded_model
from tests.full import examples


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    with coordinating() as found:
        yield found


def test_parts_of_a_module_are_the_same_objects_wherever_they_appear(
    coordination: Coordination,
) -> None:
    model = coordination.built(seeded_model)
    model.unused.weight = model.first.weight
    theirs, first, weight = coordination.ship((model, model.first, model.first.weight))
    assert theirs.first is first
    assert theirs.first.weight is theirs.unused.weight is weight
    assert [type(one) for one in theirs.modules()] == [type(one) for one in model.modules()]
    assert coordination.ship(model.parameters).__self__ is theirs


def test_frozen_parameters_are_frozen_there(coordination: Coordination) -> None:
    model = coordination.built(lambda: nn.Linear(2, 1))
    theirs = coordination.ship(model)
    model.weight.requires_grad_(False)
    assert theirs.weight.requires_grad
    assert coordination.ship(model) is theirs
    assert not theirs.weight.requires_grad
    assert theirs.bias.requires_grad


def test_buffers_and_attributes_are_sent_again_when_they_change(
    coordination: Coordination,
) -> None:
    model = coordination.built(Scaled)
    theirs = coordination.ship(model)
    buffer = theirs.statistics
    model.statistics.add_(1)
    model.noted["names"].append("b")
    model.eval()
    assert coordination.ship(model) is theirs
    assert theirs.statistics is buffer
    assert torch.equal(buffer, torch.ones(2))
    assert theirs.noted == {"names": ["a", "b"]}
    assert not theirs.training
    assert not theirs.inner.training
    model.train()
    assert coordination.ship(model).inner.training


@pytest.mark.parametrize("size", [1, 100_000])
def test_buffers_of_any_size_are_seen_to_change(coordination: Coordination, size: int) -> None:
    model = coordination.built(Scaled)
    model.statistics = torch.zeros(size)
    theirs = coordination.ship(model)
    assert coordination.define(coordination.closure_pickler.dump(model)) == 0
    model.statistics.numpy()[-1] = 1
    coordination.ship(model)
    assert torch.equal(theirs.statistics, model.statistics)


def test_only_what_changed_is_written_over(coordination: Coordination) -> None:
    model = coordination.built(Scaled)
    theirs = coordination.ship(model)
    theirs.statistics.fill_(5)
    theirs.own = "of the worker"
    model.scale = 2.0
    coordination.ship(model)
    assert (theirs.scale, theirs.own) == (2.0, "of the worker")
    assert torch.equal(theirs.statistics, torch.full((2,), 5.0))


def test_what_is_taken_away_is_gone_there_too(coordination: Coordination) -> None:
    model = coordination.built(Scaled)
    handle = model.register_forward_pre_hook(nn.Module.eval)
    theirs = coordination.ship(model)
    assert len(theirs._forward_pre_hooks) == 1
    handle.remove()
    del model.noted, model.statistics, model.inner
    assert coordination.ship(model) is theirs
    assert not theirs._forward_pre_hooks
    assert not hasattr(theirs, "noted")
    assert not hasattr(theirs, "statistics")
    assert list(theirs.parameters()) == []


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["scale", "noted", "statistics"]),
        st.integers(0, 2),
        st.sampled_from([0, 1]),
    ),
    max_size=8,
)


@settings(max_examples=examples(40), deadline=None)
@given(changes=CHANGES, loaded_late=st.booleans())
def test_closures_get_modules_as_they_were_when_they_were_dumped(
    coordination: Coordination,
    changes: list[tuple[str, int, int]],
    loaded_late: bool,
) -> None:
    model = coordination.built(Scaled)
    waiting: list[tuple[Parcel, int, object]] = []
    for part, value, worker in changes:
        setattr(model, part, torch.full((2,), float(value)) if part[1] == "t" else value)
        parcel = coordination.closure_pickler.dump(model)
        coordination.define(parcel, worker)
        waiting.append((parcel, worker, state_of(model)))
        if not loaded_late:
            assert state_of(coordination.load(parcel, worker)) == waiting.pop()[2]
    for parcel, worker, expected in waiting:
        assert state_of(coordination.load(parcel, worker)) == expected


def state_of(model: Any) -> object:
    return model.scale, model.noted, model.statistics.tolist()


def test_one_that_was_overtaken_has_to_do_with_what_is_there(
    coordination: Coordination,
) -> None:
    model = coordination.built(Scaled)
    earlier = coordination.closure_pickler.dump(model)
    model.scale = 2.0
    assert coordination.ship(model).scale == 2.0
    assert coordination.load(earlier).scale == 2.0


def test_modules_that_refer_to_each_other_arrive(coordination: Coordination) -> None:
    model = coordination.built(Scaled)
    model.inner.__dict__["parent"] = [model]
    theirs = coordination.ship(model.inner)
    assert theirs.parent[0].inner is theirs

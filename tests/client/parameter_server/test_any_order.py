"""Whatever programs make, in any order, they have the values of what it is, or are told."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stratagem import MirroredStrategy, Strategy
from stratagem._checkpoints.restoring import RestoreStatus
from stratagem_proto.errors import StratagemError
from tests.client.clusters import running
from tests.client.parameter_server.towers import VALUES, Tower, evaluating, made
from tests.full import examples

Build = Callable[[Strategy, Sequence[str], bool], dict[str, Tower]]


def named_by_nothing(strategy: Strategy, order: Sequence[str], empty: bool) -> dict[str, Tower]:
    towers = made(strategy, *(0.0 if empty else VALUES[name] for name in order))
    return dict(zip(order, towers, strict=True))


def each_in_a_scope(strategy: Strategy, order: Sequence[str], empty: bool) -> dict[str, Tower]:
    found: list[Tower] = []
    for name in order:
        found += made(strategy, 0.0 if empty else VALUES[name])
    return dict(zip(order, found, strict=True))


def named_by_keys(strategy: Strategy, order: Sequence[str], empty: bool) -> dict[str, Tower]:
    with strategy.scope():
        towers = {name: Tower(0.0 if empty else VALUES[name]) for name in order}
    return towers


def named_by_attributes(strategy: Strategy, order: Sequence[str], empty: bool) -> dict[str, Tower]:
    held = SimpleNamespace()
    with strategy.scope():
        for name in order:
            setattr(held, name, Tower(0.0 if empty else VALUES[name]))
    return {name: getattr(held, name) for name in order}


def named_by_scopes(strategy: Strategy, order: Sequence[str], empty: bool) -> dict[str, Tower]:
    found: list[Tower] = []
    for name in order:
        with strategy.scope(name=name):
            found.append(Tower(0.0 if empty else VALUES[name]))
    return dict(zip(order, found, strict=True))


def in_one_module(strategy: Strategy, order: Sequence[str], empty: bool) -> dict[str, Tower]:
    with strategy.scope():
        holder = nn.ModuleDict({name: Tower(0.0 if empty else VALUES[name]) for name in order})
    return {name: tower for name, tower in holder.items() if isinstance(tower, Tower)}


builds = st.sampled_from(
    [
        named_by_nothing,
        each_in_a_scope,
        named_by_keys,
        named_by_attributes,
        named_by_scopes,
        in_one_module,
    ]
)
orders = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True)


def true_or_told(known: Sequence[str], programs: Callable[[], dict[str, Tower]]) -> None:
    """Checks that towers have the values of what they are, or that somebody is told by name.

    What is not `known` starts anew.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = {name: tower.value for name, tower in programs().items()}
        except StratagemError as error:
            assert re.search(r"'(\w+[./])?fc\.(weight|bias)|missing: ", str(error)), error
            return
    if not any("only the order in which" in str(one.message) for one in caught):
        assert found == {name: VALUES[name] if name in known else 0.0 for name in found}


def telling(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether names can tell: one lone model may be called differently in each program."""
    return set(second) <= set(first) or (len(first) > 1 and len(second) > 1)


@pytest.mark.full("the orders that it draws from have tests of their own")
@settings(max_examples=examples(25))
@given(builds, orders, builds, orders)
def test_an_evaluator_has_the_right_values_or_is_refused_or_somebody_is_warned(
    first: Build, order: Sequence[str], second: Build, other: Sequence[str]
) -> None:
    if not telling(order, other):
        return
    with running(2, 2) as cluster, cluster.strategy() as chief:

        def programs() -> dict[str, Tower]:
            kept = first(chief, order, False)
            with evaluating(cluster, peer_seconds=0.1) as evaluator:
                found = second(evaluator, other, True)
                evaluator.refresh()
            del kept
            return found

        true_or_told(order, programs)


@settings(max_examples=examples(25))
@given(builds, orders, builds, orders, st.booleans(), st.booleans())
def test_a_checkpoint_has_the_right_values_or_is_refused_or_somebody_is_warned(  # noqa: PLR0913
    tmp_path_factory: pytest.TempPathFactory,
    first: Build,
    order: Sequence[str],
    second: Build,
    other: Sequence[str],
    restores_first: bool,
    as_state: bool,
) -> None:
    if not telling(order, other):
        return
    path = tmp_path_factory.mktemp("saved") / "towers.safetensors"
    saver, restorer = MirroredStrategy(["CPU:0"]), MirroredStrategy(["CPU:0"])

    def restore() -> RestoreStatus:
        if as_state:
            return restorer.load_state_dict({**saver.state_dict()})
        return restorer.restore(path)

    def programs() -> dict[str, Tower]:
        kept = first(saver, order, False)
        saver.save(path)
        status = restore() if restores_first else None
        found = second(restorer, other, True)
        status = status or restore()
        restorer.run(lambda: None)
        status.assert_consumed()
        del kept
        return found

    true_or_told(order, programs)

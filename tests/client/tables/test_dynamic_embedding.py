"""Embeddings of arbitrary keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    ParameterServerStrategy,
)
from stratagem.nn import DynamicEmbedding
from stratagem_proto.division import part_of_keys
from tests.client.clusters import running
from tests.client.tables.dynamic_tables import KEYS, built, trained
from tests.distributions import assert_same
from tests.waiting import eventually


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=3) as cluster, cluster.strategy() as strategy:
        yield strategy


def test_any_key_has_a_row_that_is_trained(strategy: ParameterServerStrategy) -> None:
    table = built(strategy)
    before = table(KEYS).detach()
    assert len(before.unique(dim=0)) == len(KEYS)
    trained(strategy, table, KEYS[:3].repeat(2), KEYS[2:4])
    change = (before - table(KEYS)).detach()
    expected = torch.tensor([2.0, 2.0, 3.0, 1.0, 0.0, 0.0])
    torch.testing.assert_close(change, expected[:, None].expand(6, 2))


def test_it_trains_as_a_table_of_the_same_rows(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy)
    plain = nn.Embedding.from_pretrained(table(KEYS).detach(), False, sparse=True)
    ours = DistributedOptimizer(torch.optim.Adagrad(table.parameters(), lr=0.1))
    theirs = torch.optim.Adagrad(plain.parameters(), lr=0.1)

    def step(places: torch.Tensor) -> None:
        (table(KEYS[places]).square().sum() + table(KEYS[places[:2]]).sum()).backward()
        ours.step()
        ours.zero_grad()

    for number in range(6):
        places = torch.randint(0, 6, (4,), generator=torch.Generator().manual_seed(number))
        strategy.run(step, args=(places,))
        theirs.zero_grad()
        (plain(places).square().sum() + plain(places[:2]).sum()).backward()
        theirs.step()
    assert torch.equal(table(KEYS), plain.weight)


def test_gradients_of_several_runs_add_up(strategy: ParameterServerStrategy) -> None:
    table = built(strategy)
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    before = table(KEYS).detach()
    strategy.run(lambda: table(KEYS[:2]).sum().backward())
    strategy.run(lambda: (table(KEYS[1:3]).sum().backward(), optimizer.step()))
    change = (before - table(KEYS)).detach()[:, 0]
    assert change.round().tolist() == [1, 2, 1, 0, 0, 0]


def test_a_key_is_admitted_after_some_updates(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy, admit_after=3)
    before = table(KEYS[:1]).detach()
    trained(strategy, table, KEYS[:1], KEYS[:1])
    assert torch.equal(table(KEYS[:1]), before)
    trained(strategy, table, KEYS[:1])
    assert not torch.equal(table(KEYS[:1]), before)


@pytest.mark.full("servers keep budgets in tests/psserver/limits")
def test_rows_stay_within_the_budget_of_bytes(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy, max_bytes=60_000)
    first = torch.arange(500)
    before = table(first).detach()
    trained(strategy, table, *torch.arange(20_000).split(500))
    kept = (table(first) != before).any(1)
    assert not kept.any()  # evicted rows start anew
    assert stored_bytes(strategy) <= 60_000


def stored_bytes(strategy: ParameterServerStrategy) -> int:
    """What the tables of the strategy take that have a budget."""
    listing = strategy.extended._store.listing()  # type: ignore[union-attr]
    return sum(
        info.table.bytes
        for listed in listing.values()
        for info in listed.variables
        if info.spec.table.dynamic.max_bytes
    )


def test_idle_rows_are_evicted(strategy: ParameterServerStrategy) -> None:
    table = built(strategy, max_idle=4)
    before = table(KEYS[:1]).detach()
    trained(strategy, table, KEYS[:1], *[KEYS[1:]] * 40)
    assert torch.equal(table(KEYS[:1]), before)


@pytest.mark.full("servers evict with time in tests/psserver/tables/test_idle_time.py")
def test_rows_are_evicted_with_time(strategy: ParameterServerStrategy) -> None:
    table = built(strategy, max_idle_seconds=0.5)
    trained(strategy, table, KEYS)

    def only_one_is_left() -> bool:
        trained(strategy, table, KEYS[:1])
        return torch.cat([*table.keys()]).tolist() == KEYS[:1].tolist()

    eventually(only_one_is_left)


@pytest.mark.full("servers evict by number in tests/psserver/tables/test_rarest_rows.py")
def test_rows_of_rare_keys_make_room(strategy: ParameterServerStrategy) -> None:
    for evict, stays in (("rarest", True), ("oldest", False)):
        table = built(strategy, max_bytes=20_000, evict=evict)
        trained(strategy, table, *[KEYS[:1]] * 50)
        trained(strategy, table, *torch.arange(900).split(40))
        assert (KEYS[0] in torch.cat([*table.keys()])) is stays


def test_keys_are_spread_over_the_parts() -> None:
    for keys in (
        torch.arange(30_000),
        torch.arange(30_000) * 2**33,
        -torch.arange(30_000),
    ):
        counts = torch.bincount(part_of_keys(keys, 3))
        assert counts.min() > 9_000


def test_initial_values_can_be_chosen(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        table = DynamicEmbedding(2)
        nn.init.constant_(table.weight, 0.5)
        drawn = DynamicEmbedding(2)
        nn.init.trunc_normal_(drawn.weight, 1.0, 0.5, a=0.75, b=1.25)
    assert (table(KEYS) == 0.5).all()
    rows = drawn(torch.arange(10_000) * 2**49 - 2**62).detach()
    assert_same(rows, nn.init.trunc_normal_(torch.empty(20_000), 1.0, 0.5, a=0.75, b=1.25))


@pytest.mark.parametrize(
    "given", [{"evict": "latest"}, {"max_idle_seconds": 0.0}, {"max_idle_seconds": float("nan")}]
)
def test_what_cannot_be_evicted_by_is_refused(
    strategy: ParameterServerStrategy, given: dict[str, Any]
) -> None:
    (name,) = given
    with pytest.raises(InvalidArgumentError, match=f"{name} is .*; it must be "):
        built(strategy, **given)


@pytest.mark.parametrize("name", ["admit_after", "max_idle", "max_bytes"])
def test_limits_are_positive(strategy: ParameterServerStrategy, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} is 0; it must be"):
        built(strategy, **{name: 0})

"""Which keys a dynamic table has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    ParameterServerStrategy,
)
from stratagem.consistency import Sync
from stratagem.nn import DynamicEmbedding
from tests.client.clusters import Cluster, running
from tests.client.tables.dynamic_tables import KEYS, built, trained
from tests.full import a_few


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=3) as cluster, cluster.strategy() as strategy:
        yield strategy


def listed(table: DynamicEmbedding, **settings: int) -> list[int]:
    """All keys of a table, none of which may come twice."""
    found: list[int] = [key for page in table.keys(**settings) for key in page.tolist()]
    assert len(found) == len(set(found))
    return sorted(found)


def test_keys_that_were_trained_are_listed(strategy: ParameterServerStrategy) -> None:
    table = built(strategy)
    assert list(table.keys()) == []
    trained(strategy, table, KEYS[:4])
    table(KEYS)
    assert listed(table) == sorted(KEYS[:4].tolist())


def test_pages_have_as_many_keys_as_are_wanted(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy)
    trained(strategy, table, torch.arange(100))
    pages = list(table.keys(page=10))
    assert max(map(len, pages)) == 10
    assert all(torch.equal(page, page.sort().values) for page in pages)
    assert listed(table, page=7) == list(range(100))


def test_keys_that_wait_for_admission_have_no_row(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy, admit_after=2)
    trained(strategy, table, KEYS[:3])
    trained(strategy, table, KEYS[2:])
    assert listed(table) == [0]


def test_keys_that_stay_are_in_one_page_whatever_becomes_of_others(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy, max_idle=1)
    stay, go = torch.arange(0, 200, 2), torch.arange(1, 200, 2)
    trained(strategy, table, torch.cat([go, stay]))
    found: list[int] = []
    for number, page in enumerate(table.keys(page=20)):
        found += page.tolist()
        trained(strategy, table, torch.cat([torch.arange(1000, 1050) + 50 * number, stay]))
    assert len(found) == len(set(found))
    assert set(stay.tolist()) <= set(found)
    assert not set(go.tolist()) & set(listed(table))


def test_pages_of_a_snapshot_are_of_its_moment(
    strategy: ParameterServerStrategy,
) -> None:
    table = built(strategy)
    trained(strategy, table, KEYS[:3])
    with strategy.snapshot():
        assert listed(table, page=1) == sorted(KEYS[:3].tolist())


def test_a_synchronous_step_is_waited_for() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[int]:
        table = built(strategy)
        trained(strategy, table, torch.tensor([worker]))
        return listed(table)

    with running(num_servers=2, num_workers=2) as cluster:
        assert cluster.run(program, consistency=Sync()) == [[0, 1], [0, 1]]


def test_a_page_has_at_least_one_key(strategy: ParameterServerStrategy) -> None:
    with pytest.raises(InvalidArgumentError, match="page is 0; it must be at least 1"):
        built(strategy).keys(page=0)


def test_there_are_none_before_the_scope_closes(cluster: Cluster) -> None:
    with cluster.strategy() as strategy, strategy.scope():
        table = DynamicEmbedding(2)
        with pytest.raises(InvalidArgumentError, match="before its scope closes"):
            table.keys()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("in_run", [True, False])
def test_gradients_go_to_their_keys_whenever_they_are_differentiated(
    strategy: ParameterServerStrategy, in_run: bool
) -> None:
    table = built(strategy)
    sgd = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    start = table(KEYS).detach()

    def loop() -> None:
        early = table(KEYS[4:]).sum()
        for key in KEYS[:4]:
            sgd.zero_grad()
            table(key).sum().backward()
            sgd.step()
        # Numbered before all of the others, and differentiated behind them.
        sgd.zero_grad()
        early.backward()
        sgd.step()

    strategy.run(loop) if in_run else loop()
    assert torch.equal(table(KEYS), start - 1.0)


@a_few("in_run", [True, False], "keys are numbered alike within and without run")
def test_keys_are_not_numbered_for_longer_than_their_gradients_are_there(
    strategy: ParameterServerStrategy, in_run: bool
) -> None:
    table = built(strategy)
    sgd = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))

    def largest() -> int:
        number = 0
        for key in range(50):
            sgd.zero_grad()
            loss = table(torch.tensor([key])).sum()
            loss.backward()
            assert table.weight.grad is not None
            number = max(number, int(table.weight.grad._indices().max()))
            sgd.step()
        return number

    assert (strategy.run(largest) if in_run else largest()) <= 1

"""Which server a variable goes to."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import stratagem
from stratagem import InvalidArgumentError, ParameterServerStrategy
from stratagem._parameter_server.variables.shards import Balanced, Demand, RoundRobin
from tests.client.clusters import running


def test_servers_take_turns_whatever_the_size() -> None:
    places = RoundRobin(range(3))
    assert [places.next(Demand(size)).server for size in (100, 1, 1, 1)] == [0, 1, 2, 0]


def test_a_colocated_variable_takes_nobodys_turn() -> None:
    places = RoundRobin(range(3))
    colocated = [None, 2, None]
    assert [places.next(Demand(1, server)).server for server in colocated] == [0, 2, 1]


def test_the_server_with_the_fewest_bytes_is_next() -> None:
    places = Balanced(range(2))
    assert [places.next(Demand(size)).server for size in (100, 30, 30, 30, 20)] == [
        0,
        1,
        1,
        1,
        1,
    ]


def test_a_colocated_variable_counts_for_its_server() -> None:
    places = Balanced(range(2))
    places.next(Demand(1))
    places.next(Demand(100, server=1))
    assert places.next(Demand(1)).server == 0


def test_what_grows_is_balanced_by_itself() -> None:
    places = Balanced(range(2))
    demands = [Demand(1000, grows=True), Demand(5), Demand(4), Demand(9, grows=True)]
    assert [places.next(one).server for one in demands] == [0, 0, 1, 1]


def looked_up(nbytes: int, parts: int = 1) -> Demand:
    return Demand(nbytes, grows=True, lookups=Fraction(1, parts))


def test_tables_take_turns_by_their_lookups_whatever_lies_between_them() -> None:
    places = RoundRobin(range(3))
    dense, small = Demand(8), looked_up(100)
    demands = [small, dense, dense, small, dense, looked_up(100, 2), looked_up(100, 2), small]
    assert [places.next(one).server for one in demands] == [0, 1, 2, 1, 1, 2, 2, 0]


@given(parts=st.lists(st.integers(1, 3)))
def test_servers_differ_by_the_lookups_of_one_table_at_most(parts: list[int]) -> None:
    for make in (RoundRobin, Balanced):
        places, lookups = make(range(3)), [Fraction(0)] * 3
        for count in parts:
            for _ in range(count):
                lookups[places.next(looked_up(1000, count)).server] += Fraction(1, count)
        assert max(lookups) - min(lookups) <= 1


def test_tables_are_balanced_by_their_lookups_while_their_bytes_are_few() -> None:
    places = Balanced(range(2))
    sizes = [2000, 10, 10, 10, 10, 10]
    assert [places.next(looked_up(size)).server for size in sizes] == [0, 1, 1, 0, 1, 0]


def test_large_tables_are_balanced_by_their_bytes_in_the_first_place() -> None:
    places, gib = Balanced(range(2)), 1 << 30
    sizes = [8, gib, 8, gib, 8, gib, 8, gib]
    servers = [places.next(looked_up(size)).server for size in sizes]
    assert [servers[1::2].count(server) for server in (0, 1)] == [2, 2]


@pytest.mark.parametrize("placement", ["balanced", "round_robin"])
def test_tables_without_a_vocabulary_have_a_part_on_each_server(placement: str) -> None:
    with running(3) as cluster, cluster.strategy(placement=placement) as strategy:
        with strategy.scope():
            model = nn.ModuleList([nn.Linear(1, 1), table(), table()])
        strategy.refresh()
        placed = strategy.extended.variable_placements()
    assert len(model) == 3
    servers = [one.server for one in placed if "/part_" in one.name]
    assert Counter(servers) == {f"/job:ps/task:{i}": 2 for i in range(3)}


def table() -> nn.Module:
    return stratagem.nn.DynamicEmbedding(2)


def test_only_the_servers_in_use_get_variables() -> None:
    for placement in (RoundRobin, Balanced):
        places = placement((1, 4))
        assert [places.next(Demand(1)).server for _ in range(3)] == [1, 4, 1]


@given(sizes=st.lists(st.integers(0, 1000)), servers=st.integers(1, 5))
def test_loads_differ_by_one_variable_at_most(sizes: list[int], servers: int) -> None:
    places = Balanced(range(servers))
    loads = [0] * servers
    for size in sizes:
        loads[places.next(Demand(size)).server] += size
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_placement_is_known_by_its_name() -> None:
    with pytest.raises(InvalidArgumentError, match="round_robin, balanced"):
        ParameterServerStrategy(placement="random")

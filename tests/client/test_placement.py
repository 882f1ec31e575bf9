"""Which server a variable goes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem import InvalidArgumentError, ParameterServerStrategy
from stratagem._parameter_server.placement import Balanced, RoundRobin


def test_servers_take_turns_whatever_the_size() -> None:
    places = RoundRobin(range(3))
    assert [places.next(size).server for size in (100, 1, 1, 1)] == [0, 1, 2, 0]


def test_a_colocated_variable_takes_nobodys_turn() -> None:
    places = RoundRobin(range(3))
    colocated = [None, 2, None]
    assert [places.next(1, server).server for server in colocated] == [0, 2, 1]


def test_the_server_with_the_fewest_bytes_is_next() -> None:
    places = Balanced(range(2))
    assert [places.next(size).server for size in (100, 30, 30, 30, 20)] == [
        0,
        1,
        1,
        1,
        1,
    ]


def test_a_colocated_variable_counts_for_its_server() -> None:
    places = Balanced(range(2))
    places.next(1)
    places.next(100, colocated=1)
    assert places.next(1).server == 0


def test_only_the_servers_in_use_get_variables() -> None:
    for placement in (RoundRobin, Balanced):
        places = placement((1, 4))
        assert [places.next(1).server for _ in range(3)] == [1, 4, 1]


@given(sizes=st.lists(st.integers(0, 1000)), servers=st.integers(1, 5))
def test_loads_differ_by_one_variable_at_most(sizes: list[int], servers: int) -> None:
    places = Balanced(range(servers))
    loads = [0] * servers
    for size in sizes:
        loads[places.next(size).server] += size
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_placement_is_known_by_its_name() -> None:
    with pytest.raises(InvalidArgumentError, match="round_robin, balanced"):
        ParameterServerStrategy(placement="random")

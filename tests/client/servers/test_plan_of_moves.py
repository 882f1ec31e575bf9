"""Which tasks go to which server."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratagem._ps_client.survey import (
    TaskLoad,
    TaskMove,
    balanced,
    drained,
    weights_of,
)


def after(placement: dict[int, int], moves: list[TaskMove]) -> dict[int, int]:
    """Where tasks are once they have moved, each once and from where it was."""
    moved = dict(placement)
    for move in moves:
        assert moved[move.task] == placement[move.task] == move.source != move.target
        moved[move.task] = move.target
    return moved


def load(placement: dict[int, int], weights: dict[int, float], server: int) -> float:
    return sum(weights[task] for task, host in placement.items() if host == server)


def test_bytes_and_calls_count_alike() -> None:
    weights = weights_of([TaskLoad(0, 100, 0.0), TaskLoad(1, 0, 7.0), TaskLoad(2, 100, 7.0)])
    assert weights == {0: 0.5, 1: 0.5, 2: 1.0}
    assert weights_of([TaskLoad(0, 0, 0.0)]) == {0: 0.0}


def test_a_server_is_drained_to_the_one_with_the_least_load() -> None:
    placement = {0: 0, 1: 1, 2: 2, 3: 2}
    weights = {0: 0.5, 1: 0.2, 2: 0.4, 3: 0.9}
    assert drained(placement, weights, 2, [0, 1]) == [TaskMove(3, 2, 1), TaskMove(2, 2, 0)]


def test_servers_with_the_same_load_keep_their_tasks() -> None:
    assert balanced({0: 0, 1: 1}, {0: 1.0, 1: 1.0}, [0, 1]) == []


def test_a_heavy_task_has_a_server_for_itself() -> None:
    placement, weights = {0: 0, 1: 0, 2: 0}, {0: 1.0, 1: 0.5, 2: 0.5}
    assert after(placement, balanced(placement, weights, [0, 1])) == {0: 1, 1: 0, 2: 0}


def test_a_new_server_gets_a_task_although_the_heaviest_server_has_but_one() -> None:
    placement, weights = {0: 0, 1: 1, 2: 1}, {0: 1.0, 1: 0.5, 2: 0.25}
    assert balanced(placement, weights, [0, 1, 2]) == [TaskMove(1, 1, 2)]


def test_a_task_without_any_load_stays() -> None:
    assert balanced({0: 0, 1: 0}, {0: 1.0, 1: 0.0}, [0, 1]) == []


@pytest.mark.parametrize("servers", [[0], [0, 1], [0, 1, 2, 3]])
def test_nothing_moves_where_nothing_is(servers: list[int]) -> None:
    assert balanced({}, {}, servers) == []


CASES = st.lists(
    st.tuples(st.integers(0, 4), st.floats(0, 1, allow_nan=False)), min_size=1, max_size=12
)


@given(CASES)
@example([(4, 5e-324)])
def test_a_plan_never_makes_the_heaviest_server_heavier_and_is_complete(
    case: list[tuple[int, float]],
) -> None:
    placement = {task: server for task, (server, _) in enumerate(case)}
    weights = {task: weight for task, (_, weight) in enumerate(case)}
    servers = [*range(5)]
    planned = after(placement, balanced(placement, weights, servers))
    before = max(load(placement, weights, server) for server in servers)
    assert max(load(planned, weights, server) for server in servers) <= before + 1e-9
    assert balanced(planned, weights, servers) == []


@given(CASES, st.integers(0, 4))
def test_a_drained_server_has_no_tasks(case: list[tuple[int, float]], server: int) -> None:
    placement = {task: host for task, (host, _) in enumerate(case)}
    weights = {task: weight for task, (_, weight) in enumerate(case)}
    targets = [each for each in range(5) if each != server]
    planned = after(placement, drained(placement, weights, server, targets))
    assert server not in planned.values()
    assert all(planned[task] == host for task, host in placement.items() if host != server)

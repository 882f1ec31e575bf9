"""Strategies read what docs/consistency.md promises, and no page promises more."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from stratagem import ParameterServerStrategy
from stratagem_rpc.channel import TCP, TRANSPORT_VARIABLE
from tests.client.clusters import running
from tests.client.relayed_clusters import relayed
from tests.consistency.checker import Checker
from tests.consistency.history import Event
from tests.consistency.strategies import SERVERS, StrategyWorker

WORKERS, STEPS = 3, 120
MOST_BYTES = 4_000

SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({"fused_steps": False}, 0),
    "fused": ({"fused_steps": True}, 1),
    "in flight": ({"pushes_in_flight": 1}, 2),
}
"""How strategies are made, and with which push the values of a step are read."""


@pytest.mark.cluster
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_no_read_of_a_strategy_violates_a_property(
    kind: str, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, TCP)
    settings, lag = SETTINGS[kind]
    history: list[Event] = []

    def program(strategy: ParameterServerStrategy, number: int) -> None:
        flies = "pushes_in_flight" in settings
        worker = StrategyWorker(strategy, number, WORKERS, history, lag, flies)
        strategy.barrier("built")
        if cut:
            relays.cut_at_random()
        worker.train(STEPS)

    with relayed(TCP, SERVERS, WORKERS, MOST_BYTES) as relays:
        relays.cluster.run(program, **settings)
    checker = Checker(history, WORKERS)
    assert not checker.violations()
    assert checker.reads == WORKERS * SERVERS * STEPS
    assert not cut or relays.cuts > STEPS // 10


@pytest.mark.parametrize(
    ("kind", "lag", "rules"),
    [
        # What a plain push brings is as of its own step.
        pytest.param("fused", 0, {"ALL-2"}, marks=pytest.mark.fast_pushes),
        ("in flight", 0, {"ALL-2", "ASY-2"}),
        ("in flight", 1, {"ALL-2", "ASY-2"}),
    ],
)
def test_the_checker_finds_where_more_is_promised_than_holds(
    kind: str, lag: int, rules: set[str]
) -> None:
    """Another worker takes a step between any two, so it is always seen too late."""
    history: list[Event] = []
    settings = [SETTINGS[kind][0], SETTINGS["plain"][0]]
    with running(SERVERS, num_workers=2) as cluster, ExitStack() as stack:
        strategies = [
            stack.enter_context(cluster.strategy(number, **each))
            for number, each in enumerate(settings)
        ]
        workers = [
            StrategyWorker(strategies[0], 0, 2, history, lag, kind == "in flight"),
            StrategyWorker(strategies[1], 1, 2, history),
        ]
        for _ in range(5):
            for worker in workers:
                worker.take_step()
        workers[0].train(1)
    found = Checker(history, 2).violations()
    assert {violation.rule for violation in found} == rules
    assert {violation.event.worker for violation in found} == {0}

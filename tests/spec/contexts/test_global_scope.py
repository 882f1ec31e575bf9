"""A strategy that is set for good, without a `with`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import stratagem
from tests.client.two_replicas import TwoReplicas
from tests.spec.contexts.contexts import CROSS, DEFAULT, state

spec = pytest.mark.spec


@pytest.fixture(autouse=True)
def default_again() -> Iterator[None]:
    yield
    assert state() == DEFAULT


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


@spec("CTX-16")
def test_the_strategy_set_last_is_current(strategy: TwoReplicas) -> None:
    other = TwoReplicas()
    for one in (strategy, other, other):
        stratagem.experimental_set_strategy(one)
        assert stratagem.get_strategy() is one
        assert state() == CROSS
        assert stratagem.Variable(1.0).distribute_strategy is one
        with one.scope():
            assert state() == CROSS
    stratagem.experimental_set_strategy(None)
    stratagem.experimental_set_strategy(None)


@spec("CTX-16")
def test_a_strategy_is_set_for_one_thread(strategy: TwoReplicas) -> None:
    seen: list[tuple[bool, bool, bool]] = []
    stratagem.experimental_set_strategy(strategy)
    thread = threading.Thread(target=lambda: seen.append(state()))
    thread.start()
    thread.join()
    stratagem.experimental_set_strategy(None)
    assert seen == [DEFAULT]


@spec("CTX-16")
@pytest.mark.parametrize("which", ["another", "the same", "none"])
def test_no_strategy_is_set_inside_of_a_scope(strategy: TwoReplicas, which: str) -> None:
    given = {"another": TwoReplicas(), "the same": strategy, "none": None}[which]

    def set_strategy() -> None:
        with pytest.raises(RuntimeError, match="Must not be called inside"):
            stratagem.experimental_set_strategy(given)

    with strategy.scope():
        set_strategy()
        assert state() == CROSS
    strategy.run(set_strategy)


@spec("CTX-16")
def test_another_strategy_is_refused_while_one_is_set(strategy: TwoReplicas) -> None:
    stratagem.experimental_set_strategy(strategy)
    with pytest.raises(RuntimeError, match="Mixing different"):
        TwoReplicas().run(lambda: None)
    stratagem.experimental_set_strategy(None)


NESTING = r"{} scope nesting error.*set_strategy out of `with`"


@spec("CTX-13", "CTX-16")
def test_a_strategy_is_not_replaced_within_a_newer_device_scope(
    strategy: TwoReplicas,
) -> None:
    strategy.extended._default_device = "CPU:1"
    stratagem.experimental_set_strategy(strategy)
    with (
        stratagem.device("CPU:0"),
        pytest.raises(RuntimeError, match=NESTING.format("Device")),
    ):
        stratagem.experimental_set_strategy(None)
    assert stratagem.get_strategy() is strategy
    stratagem.experimental_set_strategy(None)


@spec("CTX-16")
def test_a_scope_is_not_left_before_the_strategy_that_was_set_inside(
    strategy: TwoReplicas,
) -> None:
    strategy.extended._default_device = "CPU:1"
    device = stratagem.device("CPU:0")
    default = stratagem.get_strategy().scope()
    for scope, kind in ((device, "Device"), (default, "Variable creator")):
        scope.__enter__()
        stratagem.experimental_set_strategy(strategy)
        with pytest.raises(RuntimeError, match=NESTING.format(kind)):
            scope.__exit__(None, None, None)
        stratagem.experimental_set_strategy(None)
        scope.__exit__(None, None, None)

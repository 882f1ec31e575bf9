"""What scheduled functions change is changed once, however often they run."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext

import pytest

import stratagem
from stratagem import Variable
from stratagem_psserver.server import ParameterServer
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.client.coordinator.here import Gate
from tests.waiting import eventually

FUNCTIONS = 5


def counters(coordination: Coordination) -> tuple[Variable, Variable]:
    """One on each of two servers."""
    with coordination.strategy.scope():
        return stratagem.Variable(0.0), stratagem.Variable(0.0)


def recorded(server: ParameterServer) -> int:
    """How many functions a server has records of."""
    spaces = server._state.closures.coordinators()
    return sum(len(space.unended) for _, space in spaces)


@pytest.mark.spec("COO-8", "FLT-2", "FLT-3")
def test_what_a_lost_worker_had_changed_is_not_changed_again() -> None:
    gate = Gate()

    def count(here: Variable, there: Variable) -> None:
        here.assign_add(1.0)
        gate.pass_through()
        there.assign_add(1.0)

    with coordinating(num_workers=2, num_servers=2) as coordination:
        coordinator, (here, there) = coordination.coordinator, counters(coordination)
        for _ in range(FUNCTIONS):
            coordinator.schedule(count, args=(here, there))
        gate.wait_for(2)
        coordination.stop(0)
        gate.open()
        coordinator.join()
        assert [float(one.numpy()) for one in (here, there)] == [FUNCTIONS] * 2


@pytest.mark.spec("COO-8")
@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_servers_forget_functions_that_have_ended(
    error: type[Exception] | None,
) -> None:
    """Whether with a value, with an error, or cancelled because of another's error."""
    gate = Gate()

    def count(here: Variable, there: Variable) -> None:
        here.assign_add(1.0)
        there.assign_add(1.0)
        gate.pass_through()
        if error:
            raise error

    with coordinating(num_workers=2, num_servers=2) as coordination:
        coordinator, variables = coordination.coordinator, counters(coordination)
        values = [coordinator.schedule(count, args=variables) for _ in range(4)]
        gate.wait_for(2)
        # A write may wait a moment for those of the functions that follow.
        eventually(lambda: [*map(recorded, coordination.servers)] == [2, 2])
        gate.open()
        for value in values:
            with pytest.raises(error) if error else nullcontext():
                value.fetch()
        eventually(lambda: not any(map(recorded, coordination.servers)))


@pytest.mark.spec("COO-8")
def test_a_server_forgets_though_another_one_is_away() -> None:
    with coordinating(num_workers=1, num_servers=2) as coordination:
        coordinator, (here, there) = coordination.coordinator, counters(coordination)
        coordinator.schedule(there.assign_add, args=(1.0,)).fetch()
        coordination.stop_server(1)
        for _ in range(2):
            coordinator.schedule(here.assign_add, args=(1.0,)).fetch()
            eventually(lambda: not recorded(coordination.servers[0]))
        assert here.numpy() == 2


def test_the_threads_that_tell_servers_end_with_their_coordinator() -> None:
    def threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if "stratagem-reporter" in one.name}

    before = threads()
    with coordinating(num_workers=1, num_servers=2):
        mine = threads() - before
        assert len(mine) == 2

    def ended() -> bool:
        # Another thread may have held it a moment ago.
        gc.collect()
        return not mine & threads()

    eventually(ended)


def test_servers_know_what_has_ended_once_a_strategy_is_closed() -> None:
    with coordinating(num_workers=1, num_servers=2) as coordination:
        for variable in counters(coordination):
            coordination.coordinator.schedule(variable.assign_add, args=(1.0,)).fetch()
        coordination.strategy.close()
        assert not any(map(recorded, coordination.servers))

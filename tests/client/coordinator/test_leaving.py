"""What servers remember of a coordinator that has left."""

from __future__ import annotations

import stratagem
from stratagem_psserver.exactly_once.closures import ClosureLedger
from tests.client.coordinator.coordination import coordinating


def counted(variable: stratagem.Variable) -> None:
    variable.assign_add(1.0)


def test_a_coordinator_that_has_left_takes_no_place_on_servers() -> None:
    with coordinating(num_workers=1) as coordination:
        with coordination.strategy.scope():
            counter = stratagem.Variable(0.0)
        coordination.coordinator.schedule(counted, args=(counter,))
        coordination.coordinator.join()
        closures: ClosureLedger = coordination.servers[0]._state.closures
        assert [space.ended.are_all for _, space in closures.coordinators()] == [False]
        coordination.strategy.close()
        assert [space.ended.are_all for _, space in closures.coordinators()] == [True]

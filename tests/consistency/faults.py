"""Servers with one fault each, planted around the core."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_proto.v1.consistency_pb2 import Consistency, StepBegin, StepGrant
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_psserver.consistency.clocks import Clocks
from stratagem_psserver.exactly_once.numbering import Numbering
from stratagem_psserver.exactly_once.sessions import Session
from tests.consistency.history import Seen
from tests.consistency.simulation import Server, Work

EVERY = 7  # updates or reads, one of which the fault strikes


class StaleReads(Server):
    """Now and then returns what an earlier read returned."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._returned = [super().read()]

    def read(self) -> Sequence[Seen]:
        self._returned.append(super().read())
        stale = len(self._returned) % EVERY == 0
        return self._returned[-EVERY if stale else -1]


class LostAdds(Server):
    """Now and then says that an update is applied, and does not apply it."""

    _updates = 0

    def apply(self, worker: int, step: int) -> None:
        self._updates += 1
        if self._updates % EVERY:
            super().apply(worker, step)


class DoubleApplies(Server):
    """Does not recognise a request that comes a second time."""

    def once(self, key: RequestKey, work: Work) -> None:
        self._numbering[key.session_id] = Numbering()
        again = RequestKey(session_id=key.session_id, sequence=1)
        super().once(again, work)


class WrongOrder(Server):
    """Now and then applies a worker's update after its next one."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._kept: dict[int, int] = {}
        self._updates = 0

    def apply(self, worker: int, step: int) -> None:
        self._updates += 1
        if self._updates % EVERY == 0 and worker not in self._kept:
            self._kept[worker] = step
            return
        super().apply(worker, step)
        if worker in self._kept:
            super().apply(worker, self._kept.pop(worker))


class _LooseClocks(Clocks):
    """Lets workers be one step further ahead than they are told."""

    def arrive(self, begin: StepBegin, session: Session, closed: int) -> bool:
        loose = StepBegin()
        loose.CopyFrom(begin)
        loose.declared.bound += 1
        return super().arrive(loose, session, closed)

    def grant(self, name: str, number: int, closed: int) -> StepGrant | None:
        granted = super().grant(name, number, closed)
        if granted is not None:
            consistency = granted.consistency
            granted.consistency.CopyFrom(
                Consistency(mode=consistency.mode, bound=consistency.bound - 1)
            )
        return granted


class LooseBound(Server):
    """Keeps a bound of k + 1 where k is asked for."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.clocks = _LooseClocks()

"""Workers and servers of the pure core, with their steps in a random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from stratagem._parameter_server.hosting.steps import (
    decoded_consistency,
    encoded_consistency,
)
from stratagem.consistency import Consistency, Sync
from stratagem_proto.errors import AbortedError
from stratagem_proto.v1.consistency_pb2 import StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, RequestKey, Task
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM, OptimizerProgram
from stratagem_psserver.consistency.clocks import Clocks
from stratagem_psserver.exactly_once.numbering import Apply, Numbering
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.limits import Budget
from stratagem_psserver.synchronous.contributions import Part
from stratagem_psserver.synchronous.rounds import Rounds
from tests.consistency.history import (
    Answered,
    Event,
    Gone,
    Leave,
    Read,
    Reading,
    Seen,
    Sent,
)

GROUP = "SGD"
PROGRAM = OptimizerProgram(name=GROUP, class_name="SGD")

Work: TypeAlias = Callable[[], None]

# What a worker does next; it yields whether it could go on.
Life: TypeAlias = Generator[bool, None, None]


class Stuck(AssertionError):
    """Nobody can go on."""


class Server:
    """The core of one server, and what its variables contain."""

    def __init__(self, num_workers: int) -> None:
        self.clocks = Clocks()
        self.rounds = Rounds()
        self.budget = Budget(1_000_000)
        self._numbering: dict[bytes, Numbering] = {}
        self._seen: list[Seen] = [(0, 0)] * num_workers

    def once(self, key: RequestKey, work: Work) -> None:
        """Does what a request asks for, unless it was done before."""
        numbering = self._numbering.setdefault(key.session_id, Numbering())
        if isinstance(numbering.admit(key), Apply):
            work()
            numbering.finish(RecordedReply(sequence=key.sequence))

    def apply(self, worker: int, step: int) -> None:
        """Adds one update."""
        self._seen[worker] = (self._seen[worker][0] + 1, step)

    def commit(self, session: bytes, mark: StepMark) -> bool:
        """Returns whether the contribution counts."""
        if self.rounds.is_late(session, mark):
            self.clocks.count_dropped(GROUP, session)
            return False
        parts = self.rounds.commit(session, "a worker", mark)
        for part in parts:
            self.apply(part.contribution.worker, part.contribution.step.step)
            part.reservation.release()
        if parts:
            self.rounds.finish(mark)
        return True

    def read(self) -> Sequence[Seen]:
        """What the variables contain."""
        return tuple(self._seen)

    def is_applied(self, mark: StepMark) -> bool:
        """Whether they contain a synchronous step."""
        try:
            return bool(self.rounds.is_applied(mark))
        except AbortedError:
            # In a while, the worker that is gone will be back.
            return False


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    Attributes:
        seed: Of all chance.
        consistency: What training begins with.
        num_workers: How many workers there are.
        num_servers: How many servers.
        steps: How many steps there are to take.
        crashes: How likely a worker ends after a step, and comes back.
        changes: What the consistency is changed to, at some time.
    """

    seed: int
    consistency: Consistency
    num_workers: int = 3
    num_servers: int = 2
    steps: int = 10
    crashes: float = 0.0
    changes: Sequence[Consistency] = ()


@dataclass
class _Worker:
    """What one worker remembers."""

    number: int
    session: bytes = b""
    sequences: list[int] = field(default_factory=list)
    finished: int = 0
    counted: int = 0


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, server: Callable[[int], Server] = Server) -> None:
        self.scenario = scenario
        self.history: list[Event] = []
        self.held = 0
        self.servers = [server(scenario.num_workers) for _ in range(scenario.num_servers)]
        self._chance = random.Random(scenario.seed)
        self._declared = encoded_consistency(scenario.consistency)
        self._changes = list(scenario.changes)
        self._echoes: list[Work] = []
        self._reads = 0

    def run(self) -> list[Event]:
        """Has all workers take their steps; returns what happened.

        Raises:
            Stuck: They cannot.
        """
        lives = {number: self._life(number) for number in range(self._num_workers)}
        speeds = [self._chance.random() + 0.05 for _ in lives]
        waiting: set[int] = set()
        while lives:
            numbers = list(lives)
            weights = [speeds[number] for number in numbers]
            (number,) = self._chance.choices(numbers, weights)
            match next(lives[number], None):
                case None:
                    del lives[number]
                    waiting.clear()
                case True:
                    waiting.clear()
                case False:
                    waiting.add(number)
            if waiting and waiting == lives.keys():
                raise Stuck(f"workers {sorted(waiting)} wait: {self.scenario}")
            self._happen()
        return self.history

    @property
    def _num_workers(self) -> int:
        return self.scenario.num_workers

    def _happen(self) -> None:
        """What comes from outside of the workers."""
        if self._echoes and self._chance.random() < 0.2:
            self._echoes.pop()()
        begun = bool(self.history) and isinstance(self.history[0], Leave)
        if self._changes and begun and self._chance.random() < 0.02:
            self.servers[0].clocks.change(GROUP, encoded_consistency(self._changes.pop(0)))

    # A worker.

    def _life(self, number: int) -> Life:
        worker = _Worker(number)
        self._open(worker)
        while (leave := (yield from self._begin(worker))).step <= self.scenario.steps:
            for _ in range(self._chance.randrange(1, 12)):
                yield from self._read(number)
            done = yield from self._step(worker, leave)
            if not done or self._crashes():
                yield from self._crash(worker)
        self._close(worker)

    def _open(self, worker: _Worker) -> None:
        worker.session = self._chance.randbytes(16)
        worker.sequences = [0] * len(self.servers)
        worker.finished = 0
        for server in self.servers:
            server.rounds.session_opened(worker.session, self._name(worker))

    def _close(self, worker: _Worker) -> None:
        self.history.append(Gone(worker.number))
        for server in self.servers:
            server.rounds.session_ended(worker.session, "it left")
            server.clocks.session_ended(worker.session, "it left")

    def _crashes(self) -> bool:
        return self._chance.random() < self.scenario.crashes

    def _crash(self, worker: _Worker) -> Life:
        self._close(worker)
        for _ in range(self._chance.randrange(10)):
            yield True
        self._open(worker)

    def _begin(self, worker: _Worker) -> Generator[bool, None, Leave]:
        begin = StepBegin(
            group=GROUP,
            worker=worker.number,
            num_workers=self._num_workers,
            finished=worker.finished,
            declared=self._declared,
        )
        first = self.servers[0]
        closed = first.rounds.closed(GROUP)
        task = Task(job="worker", index=worker.number)
        first.clocks.arrive(begin, Session(worker.session, ROLE_WORKER, task), closed)
        while (grant := self._grant(worker.number)) is None:
            self.held += 1
            yield False
        consistency = decoded_consistency(grant.consistency)
        leave = Leave(worker.number, grant.step, consistency)
        self.history.append(leave)
        closed = self.servers[0].rounds.awaited(GROUP)
        after = max(worker.counted, closed)
        if leave.step <= self.scenario.steps and after:
            yield from self._wait(after)
        return leave

    def _grant(self, worker: int) -> StepGrant | None:
        first = self.servers[0]
        return first.clocks.grant(GROUP, worker, first.rounds.closed(GROUP))

    def _wait(self, step: int) -> Life:
        mark = StepMark(group=GROUP, step=step)
        for server in self.servers:
            while not server.is_applied(mark):
                yield False

    def _read(self, worker: int) -> Life:
        for server in self.servers:
            self._reads += 1
            read = self._reads
            self.history.append(Reading(worker, read))
            yield True
            self.history.append(Read(worker, read, server.read()))

    def _step(self, worker: _Worker, leave: Leave) -> Generator[bool, None, bool]:
        """Returns whether the worker came to the step's end."""
        self.history.append(Sent(worker.number, leave.step))
        if not isinstance(leave.consistency, Sync):
            counted: bool | None = yield from self._push(worker, leave.step)
        else:
            counted = yield from self._contribute(worker, leave)
        if counted is None:
            return False
        self.history.append(Answered(worker.number, leave.step, counted))
        worker.finished = leave.step
        return True

    def _push(self, worker: _Worker, step: int) -> Generator[bool, None, bool]:
        for index in self._shuffled():
            server, key = self.servers[index], self._key(worker, index)
            work = _Applied(server, worker.number, step)
            server.once(key, work)
            if self._chance.random() < 0.2:
                self._echoes.append(_Again(server, key, work))
            yield True
        return True

    def _contribute(self, worker: _Worker, leave: Leave) -> Generator[bool, None, bool | None]:
        """Returns whether the contribution counts; None if the worker crashes."""
        mark = StepMark(group=GROUP, step=leave.step)
        contribution = self._contribution(worker, leave, mark)
        for index in self._shuffled():
            server = self.servers[index]
            server.rounds.stage(self._part(worker, contribution, server))
            yield True
        backups = bool(contribution.replicas_to_aggregate)
        order = list(range(len(self.servers)))
        for index in order if backups else order[::-1]:
            if not backups and self._crashes():
                return None
            counted = self.servers[index].commit(worker.session, mark)
            if backups and not counted:
                return False
            yield True
        worker.counted = leave.step
        return True

    def _contribution(self, worker: _Worker, leave: Leave, mark: StepMark) -> Contribution:
        return Contribution(
            step=mark,
            worker=worker.number,
            num_workers=self._num_workers,
            replicas=1,
            reduction=REDUCTION_SUM,
            replicas_to_aggregate=leave.consistency._enough(self._num_workers),
        )

    def _part(self, worker: _Worker, contribution: Contribution, server: Server) -> Part:
        return Part(
            session_id=worker.session,
            task=self._name(worker),
            contribution=contribution,
            program=PROGRAM,
            gradients={},
            reservation=server.budget.reserve(1, "a part"),
        )

    def _name(self, worker: _Worker) -> str:
        return f"/job:worker/task:{worker.number}"

    def _shuffled(self) -> list[int]:
        return self._chance.sample(range(len(self.servers)), len(self.servers))

    def _key(self, worker: _Worker, server: int) -> RequestKey:
        worker.sequences[server] += 1
        sequence = worker.sequences[server]
        return RequestKey(session_id=worker.session, sequence=sequence, acknowledged=sequence - 1)


@dataclass(frozen=True)
class _Applied:
    """The work of an update."""

    server: Server
    worker: int
    step: int

    def __call__(self) -> None:
        self.server.apply(self.worker, self.step)


@dataclass(frozen=True)
class _Again:
    """A request that the network delivers a second time."""

    server: Server
    key: RequestKey
    work: Work

    def __call__(self) -> None:
        self.server.once(self.key, self.work)

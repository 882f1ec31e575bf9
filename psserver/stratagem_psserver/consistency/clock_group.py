"""The clocks of the workers of one group: which steps they have finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem_proto.v1.consistency_pb2 import GroupConsistency, StepBegin, WorkerClock
from stratagem_psserver.consistency.rules import StepRule
from stratagem_psserver.consistency.schedule import Phase, Schedule, from_json, to_json
from stratagem_psserver.exactly_once.session import Session


@dataclass
class Clock:
    """The clock of one worker.

    Attributes:
        session_id: Its present or last session.
        task: Its name, for messages.
        finished: The last step that it has finished or skipped.
        taken_before: The group's `taken` at the time of its latest permit; None if its updates
            cannot be stale, or it has no step under way.
        dropped: The number of its contributions that came too late.
        staleness: A histogram of its updates by the bit length of their staleness.
        gone: How its session ended, as a clause; empty while the session is open.
        opened: The place of its session in the order in which sessions were opened.
        is_at_barrier: Whether it waits at a barrier, where it finishes no steps.
    """

    session_id: bytes
    task: str
    finished: int = 0
    taken_before: int | None = None
    dropped: int = 0
    staleness: list[int] = field(default_factory=list)
    gone: str = ""
    opened: int = 0
    is_at_barrier: bool = False

    def count_stale(self, taken: int) -> None:
        """Add the update of a finished step to the histogram of staleness."""
        if self.taken_before is None:
            return
        bucket = (taken - self.taken_before).bit_length()
        self.staleness += [0] * (bucket + 1 - len(self.staleness))
        self.staleness[bucket] += 1
        self.taken_before = None

    def described(self, number: int) -> WorkerClock:
        """Return the message that describes it."""
        return WorkerClock(
            worker=number,
            task=self.task,
            finished=self.finished,
            dropped=self.dropped,
            staleness=self.staleness,
            gone=self.gone,
        )


@dataclass
class ClockGroup:
    """The clocks of one group.

    Attributes:
        declared: The rule that the programs began with.
        schedule: The rule of each step.
        num_workers: The number of workers, according to the latest request.
        workers: The workers that have begun a step, by number.
        begun: The last step that any worker has begun.
        taken: The sum of the steps that all workers have finished.
        slowest: The last step that every present worker has finished, but for those that wait at a
            barrier: for these the others must not wait, since it is the others that they wait for.
    """

    declared: StepRule
    schedule: Schedule
    num_workers: int
    workers: dict[int, Clock] = field(default_factory=dict)
    begun: int = 0
    taken: int = 0
    slowest: int = 0

    def present(self) -> list[Clock]:
        """Return the workers whose sessions are open."""
        return [worker for worker in self.workers.values() if not worker.gone]

    def stepping(self) -> list[Clock]:
        """Return the present workers that do not wait at a barrier."""
        return [worker for worker in self.present() if not worker.is_at_barrier]

    def recount(self) -> None:
        """Compute `slowest` again; a worker that has never arrived has finished no step."""
        if len(self.workers) < self.num_workers:
            self.slowest = 0
            return
        stepping = [worker.finished for worker in self.stepping()]
        self.slowest = min(stepping, default=self.slowest)
        # A worker that comes back may still have to contribute to a synchronous step.
        everyone = [worker.finished for worker in self.workers.values()]
        self.schedule.forget(min(everyone))

    def is_ahead(self, finished: int, phase: Phase) -> bool:
        """Return whether a worker is too far ahead to begin a step of a phase.

        Steps before the phase do not count: the slowest worker is taken to be at least at its
        start.
        """
        return phase.rule.holds_back(finished - max(self.slowest, phase.start - 1))

    def add_worker(self, number: int, session: Session, closed: int) -> None:
        """Add a worker that arrives or comes back, unless it is present.

        Args:
            number: The worker.
            session: Its session.
            closed: The newest synchronous step that takes no more contributions.
        """
        known = self.workers.setdefault(number, Clock(session.id, session.label))
        known.opened = session.opened
        if known.session_id == session.id and not known.gone:
            return
        others = [each.finished for each in self.present() if each is not known]
        known.is_at_barrier = False
        known.gone, known.session_id, known.task = "", session.id, session.label
        known.finished = self.schedule.regained(
            known.finished, closed, level=min(others, default=0)
        )

    def is_as_before(self, begin: StepBegin, session_id: bytes) -> bool:
        """Return whether a worker is present and its request repeats settings already checked."""
        known = self.workers.get(begin.worker)
        return (
            known is not None
            and known.session_id == session_id
            and not known.gone
            and begin.worker < begin.num_workers == self.num_workers
            and begin.declared == self.declared.message
        )

    def note_finished(self, begin: StepBegin) -> bool:
        """Note which step a worker has finished.

        Returns:
            Whether other workers may get a permit now.
        """
        before = self.slowest, self.schedule.newest
        self.workers[begin.worker].is_at_barrier = False
        self._advance(begin.worker, begin.finished)
        self.recount()
        return before != (self.slowest, self.schedule.newest)

    def _advance(self, number: int, finished: int) -> None:
        """Set a worker's clock to the step that it says it has finished."""
        worker = self.workers[number]
        if finished > worker.finished:
            worker.finished = finished
            worker.count_stale(self.taken)
            self.taken += 1
        worker.finished = self.schedule.following(worker.finished, 0) - 1

    def described(self, name: str) -> GroupConsistency:
        """Return the message that describes the group of that name."""
        newest = self.schedule.newest
        clocks = [clock.described(n) for n, clock in sorted(self.workers.items())]
        return GroupConsistency(
            group=name, consistency=newest.rule.message, since=newest.start, workers=clocks
        )

    def facts(self) -> dict[str, Any]:
        """Return the group as JSON."""
        workers = {
            number: [
                worker.task,
                worker.finished,
                worker.dropped,
                # A copy, since others may read the facts while steps are taken.
                [*worker.staleness],
                worker.session_id.hex(),
                worker.taken_before,
                worker.gone,
                worker.opened,
                worker.is_at_barrier,
            ]
            for number, worker in self.workers.items()
        }
        return {
            "declared": to_json(self.declared),
            "phases": self.schedule.facts(),
            "num_workers": self.num_workers,
            "workers": workers,
            "begun": self.begun,
            "taken": self.taken,
            "slowest": self.slowest,
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any], are_there: bool = False) -> ClockGroup:
        """Return a group from the facts of a server that was restarted.

        Args:
            facts: The facts.
            are_there: Whether its workers are as present as they were; otherwise all are gone.
        """
        schedule = Schedule.of_facts(facts["phases"])
        group = cls(from_json(facts["declared"]), schedule, facts["num_workers"])
        for number, (task, finished, dropped, staleness, *presence) in facts["workers"].items():
            clock = Clock(b"", task, finished, None, dropped, staleness, "its server was restarted")
            if are_there:
                session, clock.taken_before, clock.gone, clock.opened, *barrier = presence
                # Images of earlier releases do not say it.
                clock.is_at_barrier = any(barrier)
                clock.session_id = bytes.fromhex(session)
            group.workers[int(number)] = clock
        group.begun, group.taken = facts["begun"], facts["taken"]
        group.slowest = facts["slowest"]
        return group

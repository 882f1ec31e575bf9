"""The clocks of all groups, and the permits for the steps of their workers.

Only the first server of a cluster keeps clocks. A worker says which step it has finished and gets a
permit for the next one, which contains the step's number and its consistency. All workers agree on
both, because a change of consistency begins after the last step that any worker has begun.

When its session ends, a worker is gone and holds back nobody. When it comes back it goes on at the
step of the slowest present worker, or at its own step if that is later. A server that restarts
restores the clocks from its checkpoint, with all workers gone until they come back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.consistency_pb2 import (
    Consistency,
    DeclaredOptimizer,
    GroupConsistency,
    StepBegin,
    StepGrant,
    WorkerClock,
)
from stratagem_psserver.consistency.rules import (
    Phase,
    Schedule,
    StepRule,
    rule_from_json,
    rule_of,
    rule_to_json,
)
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.synchronous.contributions import MAX_WORKERS
from stratagem_psserver.synchronous.rounds import MAX_GROUPS
from stratagem_psserver.waiting import AwaitedClient, listed


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
        optimizer: What its session made the optimizer with; None if it has not said so.
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
    optimizer: DeclaredOptimizer | None = None

    def count_stale(self, taken: int) -> None:
        """Add the update of a finished step to the histogram of staleness."""
        if self.taken_before is None:
            return
        bucket = (taken - self.taken_before).bit_length()
        self.staleness += [0] * (bucket + 1 - len(self.staleness))
        self.staleness[bucket] += 1
        self.taken_before = None

    def described(self, number: int) -> WorkerClock:
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
        return [worker for worker in self.workers.values() if not worker.gone]

    def stepping(self) -> list[Clock]:
        """Return the present workers that do not wait at a barrier."""
        return [worker for worker in self.present() if not worker.is_at_barrier]

    def declaring(self, number: int) -> Iterator[tuple[int, Clock]]:
        """Yield the present workers but one that have said what their optimizer was made with."""
        for other, clock in self.workers.items():
            if other != number and not clock.gone and clock.optimizer is not None:
                yield other, clock

    def recount(self) -> None:
        """Compute `slowest` again; a worker that has never arrived has finished no step."""
        if len(self.workers) < self.num_workers:
            self.slowest = 0
            return
        workers = self.workers.values()
        stepping = [one.finished for one in workers if not (one.gone or one.is_at_barrier)]
        self.slowest = min(stepping, default=self.slowest)
        # A worker that comes back may still have to contribute to a synchronous step.
        self.schedule.forget(min([one.finished for one in workers]))

    def is_ahead(self, finished: int, phase: Phase) -> bool:
        """Return whether a worker is too far ahead to begin a step of a phase.

        Steps before the phase do not count: the slowest worker is taken to be at least at its
        start.
        """
        return phase.rule.holds_back(finished - max(self.slowest, phase.start - 1))

    def add_worker(self, begin: StepBegin, session: Session, closed: int) -> None:
        """Add a worker that arrives or comes back, unless it is present."""
        known = self.workers.setdefault(begin.worker, Clock(session.id, session.label))
        known.optimizer = begin.optimizer if begin.HasField("optimizer") else None
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
        """Note which step a worker has finished; return whether others may get a permit now."""
        before, worker = self.slowest, self.workers[begin.worker]
        worker.is_at_barrier = False
        if begin.finished > worker.finished:
            worker.finished = begin.finished
            worker.count_stale(self.taken)
            self.taken += 1
        worker.finished = self.schedule.following(worker.finished, 0) - 1
        self.recount()
        return before != self.slowest

    def described(self, name: str) -> GroupConsistency:
        newest = self.schedule.newest
        clocks = [clock.described(n) for n, clock in sorted(self.workers.items())]
        return GroupConsistency(
            group=name, consistency=newest.rule.message, since=newest.start, workers=clocks
        )

    def facts(self) -> dict[str, Any]:
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
                worker.optimizer and worker.optimizer.SerializeToString(deterministic=True).hex(),
            ]
            for number, worker in self.workers.items()
        }
        return {
            "declared": rule_to_json(self.declared),
            "phases": self.schedule.facts(),
            "num_workers": self.num_workers,
            "workers": workers,
            "begun": self.begun,
            "taken": self.taken,
            "slowest": self.slowest,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], are_there: bool = False) -> ClockGroup:
        """Return a group from the facts of a server that was restarted."""
        schedule = Schedule.from_facts(facts["phases"])
        group = cls(rule_from_json(facts["declared"]), schedule, facts["num_workers"])
        for number, (task, finished, dropped, staleness, *presence) in facts["workers"].items():
            clock = Clock(b"", task, finished, None, dropped, staleness, "its server was restarted")
            if are_there:
                session, clock.taken_before, clock.gone, clock.opened, *later = presence
                # Images of earlier releases do not say it.
                clock.is_at_barrier, optimizer = [*later, False, None][:2]
                if optimizer:
                    clock.optimizer = DeclaredOptimizer.FromString(bytes.fromhex(optimizer))
                clock.session_id = bytes.fromhex(session)
            group.workers[int(number)] = clock
        group.begun, group.taken = facts["begun"], facts["taken"]
        group.slowest = facts["slowest"]
        return group


class Clocks:
    """The clocks of all groups.

    Call `arrive` when a worker wants to begin a step, then poll `grant` until it returns a permit.
    For both, `closed` is the newest synchronous step that takes no more contributions.
    """

    def __init__(self) -> None:
        self._groups: dict[str, ClockGroup] = {}

    def arrive(self, begin: StepBegin, session: Session, closed: int) -> bool:
        """Note that a worker wants to begin a step, and which step it has finished.

        Returns:
            Whether other workers of the group may get a permit now.

        Raises:
            InvalidArgumentError: The request contradicts those of other workers.
            FailedPreconditionError: There are too many groups, or another worker has its number.
        """
        group = self._groups.get(begin.group)
        if group is None or not group.is_as_before(begin, session.id):
            return self._register(begin, session, closed)
        return group.note_finished(begin)

    def _register(self, begin: StepBegin, session: Session, closed: int) -> bool:
        check_name(begin.group, "group")
        if not begin.worker < begin.num_workers <= MAX_WORKERS:
            raise InvalidArgumentError(
                f"{session.label} begins a step of {begin.group!r} as worker {begin.worker} of "
                f"{begin.num_workers}; workers are numbered from 0 and are at most "
                f"{MAX_WORKERS}"
            )
        rule = rule_of(begin.declared)
        rule.check(begin.num_workers)
        group = self._groups.get(begin.group)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                raise FailedPreconditionError(
                    f"this server keeps the clocks of {MAX_GROUPS} groups, which is "
                    "the most; give the optimizer the same name in each run"
                )
            group = ClockGroup(rule, Schedule(rule), begin.num_workers)
            self._groups[begin.group] = group
        before = group.slowest, group.schedule.newest
        _check_number_is_free(group, begin, session)
        _declare(group, begin, session.label)
        self._check_optimizer(begin, session.label)
        group.num_workers = begin.num_workers
        group.add_worker(begin, session, closed)
        group.note_finished(begin)
        return before != (group.slowest, group.schedule.newest)

    def _check_optimizer(self, begin: StepBegin, task: str) -> None:
        """Check that a worker steps its variables as the present workers step them.

        Programs may go from one optimizer to another at different times, so that only those differ
        of which neither has made that of the other.
        """
        if not begin.HasField("optimizer"):
            return
        mine = begin.optimizer
        _check_settings(self._groups[begin.group], begin, task)
        for name, group in self._groups.items():
            for number, other in group.declaring(begin.worker):
                assert other.optimizer is not None
                if (
                    other.optimizer.trained == mine.trained
                    and begin.worker not in group.workers
                    and number not in self._groups[begin.group].workers
                ):
                    raise InvalidArgumentError(
                        f"{task} steps its variables by {mine.class_name}, as {begin.group!r}, but "
                        f"{other.task} steps the same ones by {other.optimizer.class_name}, as "
                        f"{name!r}; run the same program on all workers. If they are to go from "
                        "one optimizer to the other, make both in each worker, in the same order"
                    )

    def grant(self, name: str, number: int, closed: int) -> StepGrant | None:
        """Return the permit for a worker's next step; None while it has to wait."""
        group = self._groups[name]
        worker = group.workers[number]
        step = group.schedule.following(worker.finished, closed)
        phase = group.schedule.at(step)
        if group.is_ahead(step - 1, phase):
            return None
        group.begun = max(group.begun, step)
        worker.taken_before = None if phase.rule.closes_steps else group.taken
        if worker.finished != step - 1:
            worker.finished = step - 1
            group.recount()
        return StepGrant(step=step, consistency=phase.rule.message)

    def explain_wait(self, name: str, number: int) -> str:
        """Return a clause that says for which workers a worker waits."""
        group = self._groups[name]
        slow = [worker.task for worker in group.stepping() if worker.finished == group.slowest]
        if unseen := [n for n in range(group.num_workers) if n not in group.workers]:
            slow = [f"worker {each}" for each in unseen]
        return (
            f"{group.workers[number].task} has finished {group.workers[number].finished} steps, "
            f"but {listed(slow)} only {group.slowest}"
        )

    def awaited(self, name: str, task_of: Callable[[int], str]) -> list[AwaitedClient]:
        """Return the slowest workers of a group, for whom others wait."""
        group = self._groups[name]
        unseen = [task_of(n) for n in range(group.num_workers) if n not in group.workers]
        slow = [worker.task for worker in group.stepping() if worker.finished == group.slowest]
        return [
            AwaitedClient(client, f"end of step {group.slowest + 1}") for client in unseen or slow
        ]

    def change(self, name: str, consistency: Consistency) -> int:
        """Change a group's consistency and return the first step that has it.

        Raises:
            NotFoundError: No worker has begun a step of the group.
            InvalidArgumentError: It needs more workers than the group has.
        """
        group = self._groups.get(name)
        if group is None:
            raise NotFoundError(
                f"no worker has begun a step of {name!r} yet; give its consistency to "
                "the strategy or the optimizer, or change it once training runs"
            )
        rule = rule_of(consistency)
        rule.check(group.num_workers)
        return group.schedule.change(rule, group.begun)

    def count_dropped(self, name: str, session_id: bytes) -> None:
        """Count a contribution of a worker that came too late."""
        group = self._groups.get(name)
        for worker in group.workers.values() if group else ():
            worker.dropped += worker.session_id == session_id

    def session_ended(self, session_id: bytes, why: str) -> list[str]:
        """Note that a worker is gone; return the groups where others may get a permit now."""
        touched = []
        for name, group in self._groups.items():
            for worker in group.workers.values():
                if worker.session_id == session_id:
                    worker.gone, worker.taken_before = why, None
                    group.recount()
                    touched.append(name)
        return touched

    def at_barrier(self, session_id: bytes) -> list[str]:
        """Note that a worker waits at a barrier; return the groups where others may go on."""
        touched = []
        for name, group in self._groups.items():
            for worker in group.workers.values():
                if worker.session_id == session_id and not worker.is_at_barrier:
                    worker.is_at_barrier = True
                    group.recount()
                    touched.append(name)
        return touched

    def passed(self, sessions: Collection[bytes]) -> list[str]:
        """Note that workers have passed a barrier, and are level from there on.

        Some may have taken more steps than others up to there, such as one that was started again.

        Returns:
            The groups where others may go on.
        """
        for group in self._groups.values():
            together = [one for one in group.workers.values() if one.session_id in sessions]
            furthest = max((one.finished for one in together), default=0)
            for worker in together:
                worker.is_at_barrier = False
                if not group.schedule.newest.rule.closes_steps:
                    worker.finished = furthest
            group.recount()
        return [*self._groups]

    def facts(self) -> dict[str, Any]:
        return {name: group.facts() for name, group in self._groups.items()}

    def restore(self, facts: Mapping[str, Any], are_there: bool = False) -> None:
        """Restore what `facts` returned; workers are gone unless they `are_there`."""
        self._groups = {name: ClockGroup.from_facts(one, are_there) for name, one in facts.items()}

    def report(self) -> Iterable[GroupConsistency]:
        return [group.described(name) for name, group in self._groups.items()]


def _declare(group: ClockGroup, begin: StepBegin, task: str) -> None:
    """Check that a program begins with the same consistency as those of the present workers.

    If no other worker is present, the consistency becomes that of the group.
    """
    declared = rule_of(begin.declared)
    for number, other in group.workers.items():
        if number != begin.worker and not other.gone:
            if declared != group.declared:
                raise InvalidArgumentError(
                    f"{task} and {other.task} differ in the consistency of "
                    f"{begin.group!r}: {declared.described} against "
                    f"{group.declared.described}; run the same program on all workers"
                )
            return
    if declared != group.declared:
        # The program was started again with other settings.
        group.declared = declared
        group.schedule.change(declared, group.begun)


def _check_settings(group: ClockGroup, begin: StepBegin, task: str) -> None:
    """Check that all present workers have made the optimizer of a group with the same values."""
    mine = begin.optimizer.settings
    for _, other in group.declaring(begin.worker):
        assert other.optimizer is not None
        theirs = other.optimizer.settings
        for key in sorted(mine.keys() & theirs.keys()):
            if mine[key] != theirs[key]:
                raise InvalidArgumentError(
                    f"{task} and {other.task} have made the optimizer {begin.group!r} with "
                    f"different values of {key!r}: {mine[key]} against {theirs[key]}; run the same "
                    "program on all workers. Who wants them to differ sets them in param_groups "
                    "once the optimizer is made"
                )


def _check_number_is_free(group: ClockGroup, begin: StepBegin, session: Session) -> None:
    holder = group.workers.get(begin.worker)
    if holder is None or holder.gone:
        return
    if holder.task != session.label:
        raise FailedPreconditionError(
            f"{session.label} and {holder.task} both are worker {begin.worker} of "
            f"{begin.group!r}; give each worker a task index of its own"
        )
    # A worker that was replaced may not move the clock of its successor: a request of its last
    # moments may arrive late.
    if session.opened < holder.opened:
        raise FailedPreconditionError(
            f"a later run of {session.label} takes the steps of {begin.group!r} now; end this one, "
            "or let it have a group of its own by another name of the optimizer"
        )

"""How far the workers of each group are, and who has to wait for the others.

Only the first server of a cluster is asked. A worker says which step it has finished and gets leave
to take the next one: which step that is, and with what consistency. It is here that the workers
agree on both, since a change of consistency begins with the step after the last that any of them
began.

When a session ends, its worker is gone: it holds nobody back any more. One that comes again goes on
level with the slowest of those that are there, or where it was if that is further. A server that
restarts goes on with the clocks of its checkpoint, and all workers are gone until they come again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.consistency_pb2 import Consistency, GroupConsistency, StepBegin, StepGrant
from stratagem_psserver.consistency.clock_group import ClockGroup
from stratagem_psserver.consistency.rules import rule_of
from stratagem_psserver.consistency.schedule import Schedule
from stratagem_psserver.synchronous.contribution_checks import MAX_WORKERS
from stratagem_psserver.synchronous.rounds import MAX_GROUPS
from stratagem_psserver.waiting import listed


class Clocks:
    """The clocks of all groups.

    Call `arrive` when a worker begins a step, then look at `grant` until it is given.
    """

    def __init__(self) -> None:
        self._groups: dict[str, ClockGroup] = {}

    def arrive(self, begin: StepBegin, session_id: bytes, task: str, closed: int) -> bool:
        """Takes note of what a worker has finished.

        Args:
            begin: What it says.
            session_id: Its session.
            task: Its name.
            closed: The newest synchronous step that takes no more contributions.

        Returns:
            Whether others of the group may have leave now.

        Raises:
            InvalidArgumentError: The worker or its consistency contradicts the others'.
            FailedPreconditionError: There are too many groups.
        """
        group = self._groups.get(begin.group)
        if group is None or not group.is_as_before(begin, session_id):
            return self._settle_in(begin, session_id, task, closed)
        return group.take_in(begin)

    def _settle_in(self, begin: StepBegin, session_id: bytes, task: str, closed: int) -> bool:
        check_name(begin.group, "group")
        _check_numbers(begin, task)
        group = self._known_group(begin)
        before = group.slowest, group.schedule.newest
        _check_place(group, begin, task)
        _declare(group, begin, task)
        group.num_workers = begin.num_workers
        group.seat(begin.worker, session_id, task, closed)
        group.take_in(begin)
        return before != (group.slowest, group.schedule.newest)

    def _known_group(self, begin: StepBegin) -> ClockGroup:
        group = self._groups.get(begin.group)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                raise FailedPreconditionError(
                    f"this server keeps the clocks of {MAX_GROUPS} groups, which is "
                    "the most; give the optimizer the same name in each run"
                )
            rule = rule_of(begin.declared)
            group = ClockGroup(rule, Schedule(rule), begin.num_workers)
            self._groups[begin.group] = group
        return group

    def grant(self, name: str, number: int, closed: int) -> StepGrant | None:
        """Leave for a worker's next step, None as long as it has to wait.

        Args:
            name: The group.
            number: The worker, which has arrived.
            closed: The newest synchronous step that takes no more contributions.
        """
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

    def holding(self, name: str, number: int) -> str:
        """Who keeps a worker waiting, for a message."""
        group = self._groups[name]
        slow = [worker.task for worker in group.present() if worker.finished == group.slowest]
        if unseen := [n for n in range(group.num_workers) if n not in group.workers]:
            slow = [f"worker {each}" for each in unseen]
        return (
            f"{group.workers[number].task} is {group.workers[number].finished} steps "
            f"far, {listed(slow)} {group.slowest}"
        )

    def change(self, name: str, consistency: Consistency) -> int:
        """Changes a group's consistency; returns the first step for which it holds.

        Raises:
            NotFoundError: No worker has begun a step of the group.
            InvalidArgumentError: The workers cannot have that consistency.
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

    def dropped(self, name: str, session_id: bytes) -> None:
        """Counts a contribution that came too late."""
        group = self._groups.get(name)
        for worker in group.workers.values() if group else ():
            worker.dropped += worker.session_id == session_id

    def session_ended(self, session_id: bytes, why: str) -> list[str]:
        """Lets a worker go; returns the groups where others may have leave now."""
        touched = []
        for name, group in self._groups.items():
            for worker in group.workers.values():
                if worker.session_id == session_id:
                    worker.gone, worker.taken_before = why, None
                    group.recount()
                    touched.append(name)
        return touched

    def facts(self) -> dict[str, Any]:
        """What another run of the server needs to go on, as JSON has it."""
        return {name: group.facts() for name, group in self._groups.items()}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Goes on with the clocks of an earlier run, whose workers are yet to come."""
        self._groups = {name: ClockGroup.of_facts(item) for name, item in facts.items()}

    def report(self) -> Iterable[GroupConsistency]:
        """Describes all groups."""
        return [group.described(name) for name, group in self._groups.items()]


def _declare(group: ClockGroup, begin: StepBegin, task: str) -> None:
    """Compares what a program begins with to what the others' did."""
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
        # A program may be started again with other settings.
        group.declared = declared
        group.schedule.change(declared, group.begun)


def _check_numbers(begin: StepBegin, task: str) -> None:
    if not begin.worker < begin.num_workers <= MAX_WORKERS:
        raise InvalidArgumentError(
            f"{task} begins a step of {begin.group!r} as worker {begin.worker} of "
            f"{begin.num_workers}; workers are numbered from 0 and are at most "
            f"{MAX_WORKERS}"
        )
    rule_of(begin.declared).check(begin.num_workers)


def _check_place(group: ClockGroup, begin: StepBegin, task: str) -> None:
    holder = group.workers.get(begin.worker)
    if holder is not None and not holder.gone and holder.task != task:
        raise FailedPreconditionError(
            f"{task} and {holder.task} both are worker {begin.worker} of "
            f"{begin.group!r}; give each worker a task index of its own"
        )

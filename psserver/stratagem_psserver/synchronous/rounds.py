"""Synchronous steps: one contribution of each worker, added in worker order.

A contribution is staged by one request and counts once a second one commits it, so that a worker
can stage its parts on all servers before any of them counts. When all are committed the step
closes: the server adds them up and applies the sum. Where the norm of what all servers have added
up is bounded, it waits for that first.

When a session ends, what it had only staged is dropped and what it had committed still counts;
should the worker be started again and contribute to the same step, that is dropped. The worker is
then gone: waiting for a step that cannot be closed without it fails by name, until the same task
opens a session again. When all workers of a group have left, what they had committed to steps that
are not closed is dropped; when all are gone, but may come back, it is dropped as soon as others
need the memory.

A step may close with fewer contributions than there are workers. Those that come later are then
dropped, and their workers hear of it when they commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    NonFiniteGradientError,
    StratagemError,
    UnfinishedStepError,
)
from stratagem_proto.v1.parameter_server_pb2 import StepMark
from stratagem_psserver.synchronous.closed_steps import ClosedStep, ClosedSteps
from stratagem_psserver.synchronous.contribution_checks import (
    check_agreement,
    check_numbers,
    check_replaceable,
)
from stratagem_psserver.synchronous.contributions import Part
from stratagem_psserver.synchronous.step_group import Member, StepGroup
from stratagem_psserver.waiting import listed

# More than any sane program has; without an end they would fill the memory.
MAX_GROUPS = 10_000
MAX_STEPS = 1_000  # of one group, not complete


class Rounds:
    """The synchronous groups of a server."""

    def __init__(self) -> None:
        self._groups: dict[str, StepGroup] = {}

    def stage(self, part: Part) -> None:
        """Keep a contribution, in place of an uncommitted one of the same session.

        One that is too late for a step that could close without it is dropped, and so is one that
        an earlier run of the worker has committed.

        Raises:
            InvalidArgumentError: It contradicts another worker's or itself.
            FailedPreconditionError: The step is closed, or the worker's part is committed or
                belongs to another session.
        """
        contribution = part.contribution
        mark = contribution.step
        check_numbers(part)
        self._check_room(mark)
        group = self._groups.setdefault(mark.group, StepGroup())
        member = Member(part.session_id, part.task)
        if group.has_no_use_for(part):
            group.late[part.session_id] = mark.step
            group.members[contribution.worker] = member
            part.reservation.release()
            return
        group.require_open(mark, part.task)
        # Also if the part is refused: who waits for it must hear when the worker goes.
        group.members.setdefault(contribution.worker, member)
        parts = group.parts.setdefault(mark.step, {})
        previous = parts.get(contribution.worker)
        others = [each for each in parts.values() if each is not previous]
        check_agreement(part, others)
        if previous is not None:
            check_replaceable(previous, part)
            previous.reservation.release()
        parts[contribution.worker] = part
        group.num_workers = contribution.num_workers
        group.required = contribution.replicas_to_aggregate or contribution.num_workers
        group.members[contribution.worker] = member

    def _group(self, name: str) -> StepGroup:
        # Of one that nobody has contributed to, what nobody has done.
        return self._groups.get(name) or StepGroup()

    def _check_room(self, mark: StepMark) -> None:
        group = self._groups.get(mark.group)
        if group is None and len(self._groups) >= MAX_GROUPS:
            raise FailedPreconditionError(
                f"this server has {MAX_GROUPS} synchronous groups, which is the most; "
                "give the optimizer the same name in each step"
            )
        if group and mark.step not in group.parts and len(group.parts) >= MAX_STEPS:
            raise FailedPreconditionError(
                f"{MAX_STEPS} steps of {mark.group!r} are not complete, the oldest "
                f"being {min(group.parts)}; wait for each step before the next"
            )

    def commit(self, session_id: bytes, task: str, mark: StepMark) -> list[Part]:
        """Make a staged contribution count, unless it counts already.

        Returns:
            The contributions that count in worker order if this was the last one: add them up,
            apply the sum and call `finish`, or `keep` it. Else nothing.

        Raises:
            FailedPreconditionError: Nothing of the session is staged for the step.
        """
        group = self._group(mark.group)
        if (mark.step, session_id) in group.counted.values():
            return []
        group.require_open(mark, task)
        parts = group.parts.get(mark.step, {})
        mine = [part for part in parts.values() if part.session_id == session_id]
        if not mine:
            raise FailedPreconditionError(
                f"{task} has nothing staged for step {mark.step} of {mark.group!r}; "
                "if its session had ended, what it had staged is gone: send it again"
            )
        for part in mine:
            part.committed = True
        return group.close(mark.step) if group.is_complete(mark.step) else []

    def is_late(self, session_id: bytes, mark: StepMark) -> bool:
        """Return whether the part that a session staged for a step was dropped."""
        group = self._group(mark.group)
        return group.late.get(session_id) == mark.step

    def closed(self, group: str) -> int:
        """The newest step of a group that takes no more contributions, else 0."""
        known = self._groups.get(group)
        return known.closed if known else 0

    def awaited(self, group: str) -> int:
        """Return the newest closed step of a group that did not fail, else 0."""
        known = self._groups.get(group)
        if known is None:
            return 0
        return known.closed if known.closed > known.failed[0] else known.applied

    def keep(self, group: str, closed: ClosedStep) -> None:
        """Let a closed step wait until it is to be finished."""
        self._groups[group].unfinished.add(closed)

    def unfinished(self, group: str) -> ClosedSteps:
        """Return the closed steps of a group that wait."""
        return self._group(group).unfinished

    def has_closed(self, mark: StepMark) -> bool | None:
        """True once a step is closed and added up, None while that may still happen.

        Raises:
            AbortedError: It cannot happen any more.
        """
        if self.unfinished(mark.group).find(mark.step):
            return True
        return self._is_over(mark)

    def finish(self, mark: StepMark, failure: StratagemError | None = None) -> None:
        """End a closed step: its sum is applied, or could not be.

        Args:
            mark: The step.
            failure: Why it could not. It is kept; one that was raised keeps all that its frames
                refer to.
        """
        group = self._groups[mark.group]
        if failure is not None:
            group.failed = (mark.step, failure)
        else:
            group.applied = mark.step
        for late in [step for step in group.parts if step <= group.closed]:
            group.drop(late)

    def reject(self, mark: StepMark) -> None:
        """Count a closed step that is dropped; `finish` it without a failure."""
        self._groups[mark.group].rejected += 1

    def rejected(self, group: str) -> int:
        """Return how many steps of a group were dropped."""
        return self._group(group).rejected

    def is_applied(self, mark: StepMark) -> bool | None:
        """True once the variables contain a step, None while that may still happen.

        Raises:
            AbortedError: It cannot happen any more.
        """
        if self.unfinished(mark.group).is_orphaned(mark.step):
            self.require_finished(mark)
        return self._is_over(mark)

    def require_finished(self, mark: StepMark) -> None:
        """Check that no closed step up to this one waits to be finished.

        Raises:
            UnfinishedStepError: One does.
        """
        if self.unfinished(mark.group).awaits(mark.step):
            raise UnfinishedStepError(
                f"step {mark.step} of {mark.group!r} is complete here, but nobody has "
                "told the norm of all servers' gradients; if a worker has ended in "
                "the midst of the step, start that task again"
            )

    def _is_over(self, mark: StepMark) -> bool | None:
        group = self._group(mark.group)
        if group.applied >= mark.step:
            return True
        failed_step, failure = group.failed
        if failure is not None and mark.step <= failed_step:
            raise _told(mark, failure)
        lost = group.lost(mark.step) if mark.step > group.closed else None
        if lost is not None:
            raise AbortedError(
                f"step {mark.step} of {mark.group!r} cannot be completed: "
                f"{lost.gone} before {lost.task} contributed to it; start that task "
                "again"
            )
        return None

    def missing(self, mark: StepMark) -> str:
        """Whose contributions a step still lacks, for a message."""
        group = self._groups.get(mark.group)
        if group is None or not group.num_workers:
            return f"no worker has contributed to {mark.group!r} yet"
        if mark.step <= group.closed:
            return "all contributions are there and are being applied"
        names = listed([group.label(worker) for worker in group.lacking(mark.step)])
        return f"the contributions of {names} are missing"

    def applied(self) -> dict[str, int]:
        """Return the newest step of each group that the variables contain."""
        return {name: group.applied for name, group in self._groups.items()}

    def restore(self, applied: Mapping[str, int]) -> None:
        """Go on after the steps that a checkpoint contains."""
        for name, step in applied.items():
            self._groups[name] = StepGroup(closed=step, applied=step)

    def session_opened(self, session_id: bytes, task: str) -> list[str]:
        """Note that a client is there (again); return the groups it is in."""
        return self._mark(session_id, task, "")

    def session_ended(self, session_id: bytes, why: str, left: bool = False) -> list[str]:
        """Drop what a session had staged; return the groups it is in.

        Args:
            session_id: The session.
            why: A clause that says how it ended, for messages.
            left: Whether its client ended it.
        """
        for group in self._groups.values():
            group.late.pop(session_id, None)
            group.unfinished.session_ended(session_id)
            for parts in group.parts.values():
                _orphan(parts, session_id)
        touched = self._mark(session_id, None, why, left)
        self._drop_abandoned(for_good=True)
        return touched

    def reclaim(self) -> None:
        """Drop what workers have committed that are gone with all others."""
        self._drop_abandoned(for_good=False)

    def _drop_abandoned(self, for_good: bool) -> None:
        for group in self._groups.values():
            if group.is_abandoned(for_good):
                group.abandon(for_good)

    def _mark(
        self, session_id: bytes, task: str | None, gone: str, left: bool = False
    ) -> list[str]:
        touched = []
        for name, group in self._groups.items():
            for member in group.members.values():
                if member.session_id == session_id or member.task == task:
                    member.gone, member.left = gone, left
                    touched.append(name)
        return touched


def _told(mark: StepMark, failure: StratagemError) -> StratagemError:
    """Return what those hear of a failed step who wait for it."""
    nonfinite = isinstance(failure, NonFiniteGradientError)
    cls = NonFiniteGradientError if nonfinite else AbortedError
    return cls(
        f"step {mark.step} of {mark.group!r} could not be applied: {failure}",
        variable=failure.variable,
    )


def _orphan(parts: dict[int, Part], session_id: bytes) -> None:
    mine = {w: part for w, part in parts.items() if part.session_id == session_id}
    for worker, part in mine.items():
        part.orphaned = True
        if not part.committed:
            parts.pop(worker).reservation.release()

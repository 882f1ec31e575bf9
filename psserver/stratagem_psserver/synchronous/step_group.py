"""The steps of one synchronous group."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    NonFiniteGradientError,
    StratagemError,
)
from stratagem_proto.v1.parameter_server_pb2 import StepMark
from stratagem_psserver.synchronous.closed_steps import ClosedSteps
from stratagem_psserver.synchronous.contribution_checks import agree
from stratagem_psserver.synchronous.contributions import Part
from stratagem_psserver.synchronous.member import Member
from stratagem_psserver.waiting import listed


@dataclass
class StepGroup:
    """The steps of one group.

    Attributes:
        closed: The newest step that takes no more contributions.
        applied: The newest step whose sum the variables contain.
        num_workers: The number of workers, according to the latest contribution.
        failed: The newest step that could not be applied, and why.
        rejected: The number of steps that were dropped for gradients that are not finite.
        required: The number of contributions that close a step, according to the latest one.
        parts: The contributions to steps that are not closed, by step and worker.
        members: The workers that have contributed, by number.
        late: By session: the step for which it staged a contribution too late.
        counted: By worker: the last closed step that contains its contribution, and the session.
        unfinished: The closed steps that wait for the norm of all servers' gradients.
        owed: By step and worker: the session whose committed contribution was dropped. Other
            servers may still have it, so the worker has to commit another one here first.
    """

    closed: int = 0
    applied: int = 0
    num_workers: int = 0
    failed: tuple[int, StratagemError | None] = (0, None)
    rejected: int = 0
    required: int = 0
    parts: dict[int, dict[int, Part]] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    late: dict[bytes, int] = field(default_factory=dict)
    counted: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    unfinished: ClosedSteps = field(default_factory=ClosedSteps)
    owed: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def is_complete(self, step: int) -> bool:
        return self.num_workers - len(self.lacking(step)) >= self.required

    def lacking(self, step: int) -> list[int]:
        """Return the workers that have not committed a contribution to a step."""
        parts = self.parts.get(step, {})
        return [
            worker
            for worker in range(self.num_workers)
            if worker not in parts or not parts[worker].committed
        ]

    def awaited(self, step: int) -> list[int]:
        """Return the workers for whose contribution to a step others wait.

        Where a step closes without some workers, who has staged a contribution waits for others
        before it commits.
        """
        staged = self.parts.get(step, {}) if self.required < self.num_workers else {}
        return [worker for worker in self.lacking(step) if worker not in staged]

    def missing(self, step: int) -> str:
        """Return a clause that says whose contributions a step lacks."""
        if step <= self.closed:
            return "all contributions have come and are being applied"
        names = listed([self.label(worker) for worker in self.awaited(step)])
        return f"the contributions of {names} are missing"

    def label(self, worker: int) -> str:
        member = self.members.get(worker)
        return member.task if member else f"worker {worker}"

    def lost(self, step: int, waits: bool) -> Member | None:
        """Return a worker that is gone and without which a step cannot close, or None.

        Args:
            step: The step.
            waits: As in `Member.is_lost`.
        """
        lacking = [self.members.get(worker) for worker in self.lacking(step)]
        gone = [one for one in lacking if one is not None and one.is_lost(waits)]
        possible = self.num_workers - len(gone)
        return gone[0] if gone and possible < self.required else None

    def may_close(self, step: int, elsewhere: Callable[[int], bool], waits: bool) -> bool:
        """Return whether enough workers are there that may contribute to a step.

        Args:
            step: The step.
            elsewhere: Returns whether a worker waits for something else.
            waits: As in `lost`.
        """
        staged = self.parts.get(step, {})
        return self.required <= sum(
            worker in staged or not (self._is_lost(worker, waits) or elsewhere(worker))
            for worker in range(self.num_workers)
        )

    def _is_lost(self, worker: int, waits: bool) -> bool:
        member = self.members.get(worker)
        return member is not None and member.is_lost(waits)

    def is_over(self, mark: StepMark, session_id: bytes, waits: bool) -> bool | None:
        """Return True once the variables contain a step, None while that may still happen.

        Args:
            mark: The step.
            session_id: The session that waits for it; none if it is empty.
            waits: As in `lost`.

        Raises:
            AbortedError: The step failed or cannot be completed any more.
        """
        if self.applied >= mark.step:
            return True
        failed_step, failure = self.failed
        if failure is not None and mark.step <= failed_step:
            raise _waiters_error(mark, failure)
        lost = self.lost(mark.step, waits) if mark.step > self.closed else None
        if lost is not None:
            raise AbortedError(
                f"step {mark.step} of {mark.group!r} cannot be completed: {lost.gone} before it "
                "contributed to the step; start that task again"
            )
        if session_id and session_id in self.owed.get(mark.step, {}).values():
            raise AbortedError(
                f"what this task had committed to step {mark.step} of {mark.group!r} was dropped "
                "when all workers were gone and others needed the memory; start this task again"
            )
        return None

    def absent(self) -> list[str]:
        """Return the tasks of workers that are gone and may come back."""
        return [member.task for member in self.members.values() if member.may_come_back]

    def give_up(self, tasks: Collection[str]) -> None:
        """Note that others wait no more for tasks that are gone."""
        for member in self.members.values():
            if member.gone and member.task in tasks:
                member.given_up = True

    def came(self, session_id: bytes, task: str) -> bool:
        """Note that a worker has come or come back; return whether it is a member."""
        mine = [
            one for one in self.members.values() if one.session_id == session_id or one.task == task
        ]
        for member in mine:
            member.gone, member.left, member.given_up = "", False, False
        return bool(mine)

    def session_ended(self, session_id: bytes, why: str, left: bool) -> bool:
        """Drop what a session has staged; what it has committed still counts.

        Args:
            session_id: The session.
            why: A clause that says how it ended, for messages.
            left: Whether its client ended it.

        Returns:
            Whether its worker is a member.
        """
        self._drop_staged(session_id)
        mine = [one for one in self.members.values() if one.session_id == session_id]
        for member in mine:
            member.gone, member.left, member.given_up = why, left, False
        return bool(mine)

    def _drop_staged(self, session_id: bytes) -> None:
        self.late.pop(session_id, None)
        self.unfinished.session_ended(session_id)
        for parts in self.parts.values():
            mine = {w: part for w, part in parts.items() if part.session_id == session_id}
            for worker, part in mine.items():
                part.orphaned = True
                if not part.committed:
                    parts.pop(worker).reservation.release()

    def is_abandoned(self, for_good: bool) -> bool:
        """Return whether all workers have contributed and are gone.

        Args:
            for_good: Whether their clients must have ended the sessions, so that none is resumed.
        """
        members = self.members.values()
        all_were_there = 0 < self.num_workers <= len(members)
        return all_were_there and all(
            member.left if for_good else member.gone for member in members
        )

    def abandon(self, for_good: bool) -> None:
        """Drop all contributions to steps that are not closed.

        Args:
            for_good: Whether to drop the members, too. The workers of the next program then wait
                for each other, instead of failing because those of the last program are gone.
        """
        for step, parts in list(self.parts.items()):
            self._owe(step, parts)
            self.drop(step)
        if for_good:
            self.members.clear()

    def _owe(self, step: int, parts: dict[int, Part]) -> None:
        # Where fewer contributions suffice, the first server says which ones count.
        if self.required == self.num_workers:
            lost = {worker: part.session_id for worker, part in parts.items() if part.committed}
            self.owed.setdefault(step, {}).update(lost)

    def commit(self, step: int, worker: int) -> None:
        """Have what a worker has staged for a step count."""
        self.parts[step][worker].committed = True
        self.owed.get(step, {}).pop(worker, None)

    def owing(self, step: int, session_id: bytes) -> list[int]:
        """Return the workers that have to commit to a step before a session may, if any."""
        parts = self.parts.get(step, {})
        mine = {worker for worker, part in parts.items() if part.session_id == session_id}
        owed = set(self.owed.get(step, {})) & set(range(self.num_workers))
        may = self.required < self.num_workers or mine & owed
        return [] if may else sorted(owed)

    def close(self, step: int) -> list[Part]:
        """Close a step: return its committed contributions and drop the others as too late."""
        self.closed = step
        self.owed = {later: owed for later, owed in self.owed.items() if later > step}
        parts = self.parts.pop(step)
        for worker, part in parts.items():
            if part.committed:
                self.counted[worker] = step, part.session_id
            else:
                self.late[part.session_id] = step
                part.reservation.release()
        return [parts[worker] for worker in sorted(parts) if parts[worker].committed]

    def is_to_drop(self, part: Part) -> bool:
        """Return whether a contribution is to be dropped without an error."""
        contribution = part.contribution
        step = contribution.step.step
        if step <= self.closed:
            counted, session_id = self.counted.get(contribution.worker, (0, b""))
            again = counted == step and session_id != part.session_id
            return bool(contribution.replicas_to_aggregate) or again
        known = self.parts.get(step, {}).get(contribution.worker)
        if known is None or not known.orphaned or not known.committed:
            return False
        # A program that was started again with other settings must contribute again.
        return agree(known, part)

    def drop_part(self, step: int, session_id: bytes) -> None:
        """Drop what a session has staged for a step that stays open."""
        parts = self.parts.get(step, {})
        for worker in [w for w, part in parts.items() if part.session_id == session_id]:
            parts.pop(worker).reservation.release()
            self.late[session_id] = step

    def drop(self, step: int) -> None:
        for part in self.parts.pop(step, {}).values():
            part.reservation.release()

    def require_open(self, mark: StepMark, task: str) -> None:
        """Check that a step still takes contributions.

        Raises:
            FailedPreconditionError: It is complete.
        """
        if mark.step <= self.closed:
            raise FailedPreconditionError(
                f"{task} comes too late for step {mark.step} of {mark.group!r}: step "
                f"{self.closed} is complete; go on with step {self.closed + 1}"
            )


def _waiters_error(mark: StepMark, failure: StratagemError) -> StratagemError:
    """Return the error for those that wait for a step that failed."""
    nonfinite = isinstance(failure, NonFiniteGradientError)
    cls = NonFiniteGradientError if nonfinite else AbortedError
    return cls(
        f"step {mark.step} of {mark.group!r} could not be applied: {failure}",
        variable=failure.variable,
    )

"""Synchronous steps: one contribution of each worker, added in worker order.

One request stages a contribution and a second one commits it, so that a worker can stage its parts
on all servers before any of them counts. When enough workers have committed, the step closes: the
server adds the contributions up and applies the sum. If the norm over all servers is bounded, the
closed step first waits for that norm.

When a session ends, what it has committed still counts; if the worker is started again and
contributes to the same step, the second contribution is dropped. What it has only staged does not
count yet, and is kept: if the worker had committed to the step on another server, where others may
have closed it since, its next session commits what is kept. Otherwise the next session stages
another contribution in its place, from the same values. Until the same task opens a session again,
the worker is gone, and waiting for a step that cannot close without it fails with an error that
names it, unless the worker may still be started again and was not given up: see `Absences`. When
all workers of a group have left for good, what they committed to steps that are not closed is
dropped. When all are gone but may come back, it is dropped as soon as other requests need the
memory. Other servers may have what was dropped here, and close the step once the last worker has
committed it everywhere; the first server is told last. So nobody's commit to that step counts here
before those whose contributions were dropped have committed again, which they can as long as the
first server has not closed it. Otherwise the step could close on the first server, and never here.

A step may close with fewer contributions than there are workers. Contributions that come later are
dropped, and their workers are told so when they commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    NonFiniteGradientError,
    StratagemError,
    UnevenStepsError,
    UnfinishedStepError,
    UnstagedContributionError,
)
from stratagem_proto.v1.parameter_server_pb2 import StepMark
from stratagem_psserver.synchronous.contributions import (
    ClosedStep,
    ClosedSteps,
    Part,
    check_agreement,
    check_numbers,
    check_replaceable,
)
from stratagem_psserver.synchronous.step_group import (
    Member,
    StepGroup,
    complete,
    group_from_json,
    group_to_json,
)
from stratagem_psserver.waiting import AwaitedClient, listed


class Absences:
    """When each absence was noticed.

    That a worker is not waited for any more is part of the state of its groups, and in the log.
    Only when that is to be is decided here. A server that goes on with the state of another process
    gives each worker the whole time again, since nobody could come back meanwhile.

    Args:
        seconds: For how long others wait; 0 if they do not.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._noticed: dict[str, float] = {}

    def overdue(self, absent: Iterable[str], now: float) -> Sequence[str]:
        """Return the tasks that have been away for longer than others wait.

        Args:
            absent: All tasks that are waited for although they are away.
            now: The time.
        """
        self._noticed = {task: self._noticed.get(task, now) for task in absent}
        return [task for task, since in self._noticed.items() if now - since >= self._seconds]


# No sensible program has as many; without a limit they would fill the memory.
MAX_GROUPS = 10_000
MAX_STEPS = 1_000  # incomplete steps of one group

_EVEN = (
    "let all workers take equally many steps: loop over strategy.steps(n) with the same n, or over "
    "what strategy.experimental_distribute_dataset() returns, or leave the last batches out. With "
    'consistency="async" nobody waits for others'
)


class Rounds:
    """The synchronous groups of a server.

    Args:
        waits: Whether workers wait for one that is gone and may come back, until it is given up.
    """

    def __init__(self, waits: bool = False) -> None:
        self._groups: dict[str, StepGroup] = {}
        self._waits = waits

    def stage(self, part: Part) -> None:
        """Keep a contribution; it replaces an uncommitted one of the same session.

        The contribution is dropped if it comes too late for a step that could close without it, or
        if an earlier run of the worker has committed one to the same step.

        Raises:
            InvalidArgumentError: It contradicts another worker's contribution or itself.
            FailedPreconditionError: The step is closed, or the worker's contribution is committed
                or belongs to another session.
        """
        contribution = part.contribution
        mark = contribution.step
        check_numbers(part)
        self._require_capacity(mark)
        group = self._groups.setdefault(mark.group, StepGroup())
        member = Member(part.session_id, part.task)
        if group.is_to_drop(part):
            group.late[part.session_id] = mark.step
            group.members[contribution.worker] = member
            part.reservation.release()
            return
        group.require_open(mark, part.task)
        # Even if the contribution is refused below: those that wait for it must be told when the
        # worker goes.
        group.members.setdefault(contribution.worker, member)
        parts = group.parts.setdefault(mark.step, {})
        previous = parts.get(contribution.worker)
        # What others have left without committing it may never count.
        others = [
            each
            for each in parts.values()
            if each is not previous and (each.committed or not each.orphaned)
        ]
        check_agreement(part, others)
        if previous is not None:
            check_replaceable(previous, part)
            previous.reservation.release()
        parts[contribution.worker] = part
        group.num_workers = contribution.num_workers
        group.required = contribution.replicas_to_aggregate or contribution.num_workers
        group.members[contribution.worker] = member

    def _group(self, name: str) -> StepGroup:
        # A group without contributions is like a new one.
        return self._groups.get(name) or StepGroup()

    def _require_capacity(self, mark: StepMark) -> None:
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
        """Commit a staged contribution, unless it is committed already.

        Returns:
            If this completes the step, its contributions in worker order: the caller applies their
            sum and calls `finish`, or passes the closed step to `keep`. Otherwise nothing.

        Raises:
            UnstagedContributionError: The session has staged nothing for the step.
            FailedPreconditionError: The step is closed without it.
        """
        group = self._group(mark.group)
        if (mark.step, session_id) in group.counted.values():
            return []
        group.require_open(mark, task)
        parts = group.parts.get(mark.step, {})
        mine = [worker for worker, part in parts.items() if part.session_id == session_id]
        if not mine:
            raise UnstagedContributionError(
                f"{task} has nothing staged for step {mark.step} of {mark.group!r}; "
                "if its session had ended, what it had staged is gone: send it again"
            )
        return group.commit(mark.step, mine)

    def commit_left(self, task: str, mark: StepMark) -> list[Part]:
        """Commit what an ended session of a task has staged; see `commit`.

        Raises:
            UnstagedContributionError: There is no such contribution.
        """
        group = self._group(mark.group)
        worker = group.orphan_of(mark.step, task)
        if worker is None:
            raise UnstagedContributionError(
                f"no earlier session of {task} has left anything staged for step {mark.step} of "
                f"{mark.group!r}; repeat the step"
            )
        return group.commit(mark.step, [worker])

    def committed(self) -> Iterator[tuple[str, int, int]]:
        """Yield the newest step to which each worker has committed, behind its group and number."""
        for name, group in self._groups.items():
            for worker, step in group.committed().items():
                yield name, worker, step

    def may_commit(self, session_id: bytes, mark: StepMark) -> bool | None:
        """Return True once a session may commit to a step, None while others have to before.

        Raises:
            AbortedError: The step cannot be completed any more.
        """
        owing = self._group(mark.group).owing(mark.step, session_id)
        return self._is_over(mark) if owing and not self.is_late(session_id, mark) else True

    def may_commit_left(self, task: str, mark: StepMark) -> bool | None:
        """Do as `may_commit` for what an ended session of a task has staged.

        Where that is gone there is nothing to wait for: the task has to repeat the step, and so
        have the others, which wait for each other as long as they do not.
        """
        group = self._group(mark.group)
        worker = group.orphan_of(mark.step, task)
        if worker is None:
            return True
        return self.may_commit(group.parts[mark.step][worker].session_id, mark)

    def is_late(self, session_id: bytes, mark: StepMark) -> bool:
        """Return whether the contribution that a session staged for a step was dropped."""
        group = self._group(mark.group)
        return group.late.get(session_id) == mark.step

    def closed(self, group: str) -> int:
        """Return the newest step of a group that takes no more contributions, or 0."""
        known = self._groups.get(group)
        return known.closed if known else 0

    def awaited(self, group: str) -> int:
        """Return the newest closed step of a group that did not fail, or 0."""
        known = self._groups.get(group)
        if known is None:
            return 0
        return known.closed if known.closed > known.failed[0] else known.applied

    def keep(self, group: str, closed: ClosedStep) -> None:
        """Keep a closed step until it is finished."""
        self._groups[group].unfinished.add(closed)

    def unfinished(self, group: str) -> ClosedSteps:
        """Return the closed steps of a group that wait to be finished."""
        return self._group(group).unfinished

    def has_closed(self, mark: StepMark, session_id: bytes = b"") -> bool | None:
        """Return True once a step is closed and added up, None while that may still happen."""
        if self.unfinished(mark.group).find(mark.step):
            return True
        return self._is_over(mark, session_id)

    def finish(self, mark: StepMark, failure: StratagemError | None = None) -> None:
        """End a closed step, after its sum was applied or could not be applied.

        Args:
            mark: The step.
            failure: Why the sum could not be applied, if so. It is kept, so it must be an error
                that was not raised: a raised one would keep alive all that its frames refer to.
        """
        group = self._groups[mark.group]
        if failure is not None:
            group.failed = (mark.step, failure)
        else:
            group.applied = mark.step
        for late in [step for step in group.parts if step <= group.closed]:
            group.drop(late)

    def reject(self, mark: StepMark) -> None:
        """Count a closed step that is dropped; the caller then calls `finish` without a failure."""
        self._groups[mark.group].rejected += 1

    def rejected(self, group: str) -> int:
        return self._group(group).rejected

    def is_applied(self, mark: StepMark, session_id: bytes = b"") -> bool | None:
        """Return True once the variables contain a step, None while that may still happen.

        Raises:
            AbortedError: The step failed or cannot be completed any more.
            UnfinishedStepError: The workers that could have finished it are gone.
        """
        if self.unfinished(mark.group).is_orphaned(mark.step):
            self.require_finished(mark)
        return self._is_over(mark, session_id)

    def require_finished(self, mark: StepMark) -> None:
        """Check that no closed step up to this one waits to be finished."""
        if self.unfinished(mark.group).awaits(mark.step):
            raise UnfinishedStepError(
                f"step {mark.step} of {mark.group!r} is complete here, but no worker has "
                "sent the norm of all servers' gradients; if a worker has ended during "
                "the step, start that task again"
            )

    def _is_over(self, mark: StepMark, session_id: bytes = b"") -> bool | None:
        group = self._group(mark.group)
        if group.applied >= mark.step:
            return True
        failed_step, failure = group.failed
        if failure is not None and mark.step <= failed_step:
            # Each waits with an error of its own.
            is_nonfinite = isinstance(failure, NonFiniteGradientError)
            cls = NonFiniteGradientError if is_nonfinite else AbortedError
            raise cls(
                f"step {mark.step} of {mark.group!r} could not be applied: {failure}",
                variable=failure.variable,
            )
        lost = group.lost(mark.step, self._waits) if mark.step > group.closed else None
        if lost is not None:
            subject = f"step {mark.step} of {mark.group!r} cannot be completed"
            again = (
                f"{subject}: {lost.gone} before it contributed to the step; start that task again"
            )
            if lost.left:
                raise UnevenStepsError(f"{again}, if it has failed. If not, {_EVEN}")
            raise AbortedError(again)
        if session_id and session_id in group.owed.get(mark.step, {}).values():
            raise AbortedError(
                f"what this task had committed to step {mark.step} of {mark.group!r} was dropped "
                "when all workers were gone and others needed the memory; start this task again"
            )
        return None

    def require_coming(
        self, mark: StepMark, at_barriers: Mapping[str, str], task_of: Callable[[int], str]
    ) -> None:
        """Check that those whom a step lacks do not wait at a barrier for those who contribute.

        Args:
            mark: The step.
            at_barriers: The barrier at which each task waits that does, by task.
            task_of: Returns the task of a worker by its number.

        Raises:
            UnevenStepsError: So many do that the step cannot close.
        """
        group = self._group(mark.group)
        if not at_barriers or mark.step <= group.closed:
            return
        lacking = [one.client for one in self.awaited_of(mark, task_of)]
        stuck = [task for task in lacking if task in at_barriers]
        if stuck and group.num_workers - len(stuck) < group.required:
            raise UnevenStepsError(
                f"step {mark.step} of {mark.group!r} cannot be completed: {listed(stuck)} waits at "
                f"the barrier {at_barriers[stuck[0]]!r}, where it contributes to no steps, and all "
                f"others would have to come there, too. To end this, {_EVEN}"
            )

    def missing(self, mark: StepMark) -> str:
        """Return a clause that says whose contributions a step lacks."""
        group = self._groups.get(mark.group)
        if group is None or not group.num_workers:
            return f"no worker has contributed to {mark.group!r} yet"
        if mark.step <= group.closed:
            return "all contributions have come and are being applied"
        names = listed([group.label(worker) for worker in group.lacking(mark.step)])
        return f"the contributions of {names} are missing"

    def awaited_of(self, mark: StepMark, task_of: Callable[[int], str]) -> list[AwaitedClient]:
        """Return the workers whose contribution a step lacks, or that have to send its norm."""
        group = self._group(mark.group)
        if mark.step > group.closed:
            known = {number: member.task for number, member in group.members.items()}
            lacking = (known.get(n) or task_of(n) for n in group.lacking(mark.step))
            return [AwaitedClient(task, "contribution") for task in lacking]
        closed = group.unfinished.find(mark.step)
        tasks = [part.task for part in closed.parts] if closed else []
        return [AwaitedClient(task, "norm of all gradients") for task in tasks]

    @property
    def groups(self) -> Collection[str]:
        return self._groups.keys()

    def applied(self) -> dict[str, int]:
        """Return the newest step of each group that the variables contain."""
        return {name: group.applied for name, group in self._groups.items()}

    def restore(self, applied: Mapping[str, int]) -> None:
        """Restore the newest applied step of each group."""
        for name, step in applied.items():
            self._groups[name] = StepGroup(closed=step, applied=step)

    def records(self) -> Iterator[int]:
        """Yield the positions in the log of requests whose gradients a step still needs."""
        for group in self._groups.values():
            for parts in group.parts.values():
                for part in parts.values():
                    yield from part.records

    def awaits_norms(self) -> bool:
        """Return whether closed steps wait for the norm of all servers' gradients."""
        return any(group.unfinished.has_waiting for group in self._groups.values())

    def facts(self) -> dict[str, Any]:
        """Return all groups without their gradients, as JSON; see `awaits_norms`."""
        return {name: group_to_json(group) for name, group in self._groups.items()}

    def restore_groups(self, facts: Mapping[str, Any]) -> None:
        """Restore the groups of `facts`; then stage their contributions, and call `complete`."""
        self._groups = {name: group_from_json(one) for name, one in facts.items()}

    def complete_groups(self, facts: Mapping[str, Any]) -> None:
        """Restore who had committed what was staged again, and who was there."""
        for name, one in facts.items():
            complete(self._groups[name], one)

    def session_opened(self, session_id: bytes, task: str) -> list[str]:
        """Note that a worker has come or come back; return the groups of which it is a member."""
        return self._set_gone(session_id, task, "")

    def session_ended(self, session_id: bytes, why: str, left: bool = False) -> list[str]:
        """Drop what a session has staged; return the groups of which its worker is a member.

        Args:
            session_id: The session.
            why: A clause that says how it ended, for messages.
            left: Whether its client ended it.
        """
        for group in self._groups.values():
            group.session_ended(session_id)
        touched = self._set_gone(session_id, None, why, left)
        self._drop_abandoned(for_good=True)
        return touched

    def absent(self) -> Collection[str]:
        """Return the tasks that others wait for although they are gone."""
        if not self._waits:
            return ()
        tasks = (task for group in self._groups.values() for task in group.absent())
        return dict.fromkeys(tasks).keys()

    def give_up(self, tasks: Collection[str]) -> None:
        """Let others wait no more for tasks that are gone, until they come back."""
        for group in self._groups.values():
            group.give_up(tasks)

    def reclaim(self) -> bool:
        """Drop the contributions to open steps of groups whose workers are all gone."""
        return self._drop_abandoned(for_good=False)

    def _drop_abandoned(self, for_good: bool) -> bool:
        abandoned = [one for one in self._groups.values() if one.is_abandoned(for_good)]
        had_parts = any(group.parts for group in abandoned)
        for group in abandoned:
            group.abandon(for_good)
        return had_parts

    def _set_gone(
        self, session_id: bytes, task: str | None, gone: str, left: bool = False
    ) -> list[str]:
        touched = []
        for name, group in self._groups.items():
            for member in group.members.values():
                if member.session_id == session_id or member.task == task:
                    member.gone, member.left, member.given_up = gone, left, False
                    touched.append(name)
        return touched

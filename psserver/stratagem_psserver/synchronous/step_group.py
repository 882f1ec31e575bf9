"""The steps of one synchronous group."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from stratagem_proto.errors import FailedPreconditionError, StratagemError
from stratagem_proto.v1.closed_step_pb2 import ClosedStep, GlobalNorm
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.parameter_server_pb2 import StepMark
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.synchronous.contributions import ClosedSteps, Part, agree


@dataclass
class Member:
    """A worker of a group, according to its latest contribution.

    Attributes:
        session_id: The session of that contribution.
        task: The worker's name, for messages.
        gone: How the session ended, as a clause; "" while it is open.
        left: Whether its client ended the session, and so will not resume it.
        given_up: Whether others have waited long enough for it to come back.
    """

    session_id: bytes
    task: str
    gone: str = ""
    left: bool = False
    given_up: bool = False

    @property
    def may_come_back(self) -> bool:
        """Whether it is gone, and may be started again while others wait."""
        return bool(self.gone) and not self.left and not self.given_up


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

    def label(self, worker: int) -> str:
        member = self.members.get(worker)
        return member.task if member else f"worker {worker}"

    def lost(self, step: int, waits: bool) -> Member | None:
        """Return a worker that is gone and without which a step cannot close, or None."""
        lacking = [self.members.get(worker) for worker in self.lacking(step)]
        there = [member for member in lacking if member is not None]
        gone = [one for one in there if one.gone and not (waits and one.may_come_back)]
        possible = self.num_workers - len(gone)
        return gone[0] if gone and possible < self.required else None

    def absent(self) -> list[str]:
        """Return the tasks of workers that are gone and may come back."""
        return [member.task for member in self.members.values() if member.may_come_back]

    def give_up(self, tasks: Collection[str]) -> None:
        """Note that others wait no more for tasks that are gone."""
        for member in self.members.values():
            if member.gone and member.task in tasks:
                member.given_up = True

    def session_ended(self, session_id: bytes) -> None:
        """Leave what a session has staged and committed to the next one of its worker.

        It may have committed to the step elsewhere, so that the next one has to do so here.
        """
        self.late.pop(session_id, None)
        self.unfinished.session_ended(session_id)
        for parts in self.parts.values():
            for part in parts.values():
                if part.session_id == session_id:
                    part.orphaned = True

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

    def commit(self, step: int, workers: Iterable[int]) -> list[Part]:
        """Have what some workers have staged for a step count; see `Rounds.commit`."""
        for worker in workers:
            self.parts[step][worker].committed = True
            self.owed.get(step, {}).pop(worker, None)
        return self.close(step) if self.is_complete(step) else []

    def orphan_of(self, step: int, task: str) -> int | None:
        """Return the worker whose contribution to a step an ended session of a task has left."""
        parts = self.parts.get(step, {})
        left = (worker for worker, one in parts.items() if one.orphaned and one.task == task)
        return next(left, None)

    def committed(self) -> dict[int, int]:
        """Return the newest step to which each worker has committed."""
        newest = {worker: step for worker, (step, _) in self.counted.items()}
        for step, parts in sorted(self.parts.items()):
            newest.update({worker: step for worker, part in parts.items() if part.committed})
        return newest

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

    def drop(self, step: int) -> None:
        for part in self.parts.pop(step, {}).values():
            part.reservation.release()

    def require_open(self, mark: StepMark, task: str) -> None:
        """Raise FailedPreconditionError if a step takes no more contributions."""
        if mark.step <= self.closed:
            raise FailedPreconditionError(
                f"{task} comes too late for step {mark.step} of {mark.group!r}: step "
                f"{self.closed} is complete; go on with step {self.closed + 1}"
            )


def group_to_json(group: StepGroup) -> dict[str, Any]:
    """Return a group without its gradients; no closed step waits for its norm."""

    def text(message: Message | None) -> str:
        return b64encode(message.SerializeToString()).decode() if message is not None else ""

    failed, failure = group.failed
    return {
        "closed": group.closed,
        "applied": group.applied,
        "num_workers": group.num_workers,
        "required": group.required,
        "rejected": group.rejected,
        "failed": [failed, text(to_record(failure) if failure else None)],
        "last": list(map(text, group.unfinished.last)),
        "members": {
            n: [one.session_id.hex(), one.task, one.gone, one.left, one.given_up]
            for n, one in group.members.items()
        },
        "late": {session.hex(): step for session, step in group.late.items()},
        "counted": {n: [step, session.hex()] for n, (step, session) in group.counted.items()},
        # In an order that does not depend on which contribution has replaced an earlier one.
        "owed": sorted(
            [step, worker, session.hex()]
            for step, owed in group.owed.items()
            for worker, session in owed.items()
        ),
        "parts": sorted(
            [step, worker, part.committed, part.orphaned]
            for step, parts in group.parts.items()
            for worker, part in parts.items()
        ),
    }


def group_from_json(facts: Mapping[str, Any]) -> StepGroup:
    """Return a group without contributions and members; see `complete`."""
    failed, failure = facts["failed"]
    share, norm = map(b64decode, facts["last"])
    owed: dict[int, dict[int, bytes]] = {}
    for step, worker, session in facts["owed"]:
        owed.setdefault(step, {})[worker] = bytes.fromhex(session)
    error = from_record(RecordedStatus.FromString(b64decode(failure))) if failure else None
    return StepGroup(
        closed=facts["closed"],
        applied=facts["applied"],
        num_workers=facts["num_workers"],
        required=facts["required"],
        rejected=facts["rejected"],
        failed=(failed, error),
        counted={
            int(n): (step, bytes.fromhex(session))
            for n, (step, session) in facts["counted"].items()
        },
        owed=owed,
        unfinished=ClosedSteps(last=(ClosedStep.FromString(share), GlobalNorm.FromString(norm))),
    )


def complete(group: StepGroup, facts: Mapping[str, Any]) -> None:
    """Restore what staging the contributions again has changed, and who has committed."""
    group.closed, group.num_workers = facts["closed"], facts["num_workers"]
    group.required = facts["required"]
    group.members = {
        int(n): Member(bytes.fromhex(session), *others)
        for n, (session, *others) in facts["members"].items()
    }
    group.late = {bytes.fromhex(session): step for session, step in facts["late"].items()}
    for step, worker, committed, orphaned in facts["parts"]:
        part = group.parts[step][worker]
        part.committed, part.orphaned = committed, orphaned

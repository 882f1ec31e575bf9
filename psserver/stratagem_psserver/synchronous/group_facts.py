"""A synchronous group as JSON, for an image of its server."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.closed_step_pb2 import ClosedStep, GlobalNorm
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.synchronous.closed_steps import ClosedSteps
from stratagem_psserver.synchronous.step_group import Member, StepGroup


def group_to_json(group: StepGroup) -> dict[str, Any]:
    """Return a group without its gradients; no closed step waits for its norm."""
    failed, failure = group.failed
    share, norm = group.unfinished.last
    return {
        "closed": group.closed,
        "applied": group.applied,
        "num_workers": group.num_workers,
        "required": group.required,
        "rejected": group.rejected,
        "failed": [failed, _text(to_record(failure).SerializeToString()) if failure else ""],
        "last": [_text(share.SerializeToString()), _text(norm.SerializeToString())],
        "members": {n: _member_to_json(member) for n, member in group.members.items()},
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
        owed.setdefault(step, {})[worker] = _id(session)
    return StepGroup(
        closed=facts["closed"],
        applied=facts["applied"],
        num_workers=facts["num_workers"],
        required=facts["required"],
        rejected=facts["rejected"],
        failed=(failed, _failure(failure)),
        counted={int(n): (step, _id(hex_)) for n, (step, hex_) in facts["counted"].items()},
        owed=owed,
        unfinished=ClosedSteps(last=(ClosedStep.FromString(share), GlobalNorm.FromString(norm))),
    )


def complete(group: StepGroup, facts: Mapping[str, Any]) -> None:
    """Restore what staging the contributions again has changed, and who has committed."""
    group.closed, group.num_workers = facts["closed"], facts["num_workers"]
    group.required = facts["required"]
    group.members = {int(n): _member_from_json(item) for n, item in facts["members"].items()}
    group.late = {_id(session): step for session, step in facts["late"].items()}
    for step, worker, committed, orphaned in facts["parts"]:
        part = group.parts[step][worker]
        part.committed, part.orphaned = committed, orphaned


def _member_to_json(member: Member) -> list[Any]:
    return [member.session_id.hex(), member.task, member.gone, member.left, member.given_up]


def _member_from_json(item: list[Any]) -> Member:
    session, *others = item
    return Member(_id(session), *others)


def _failure(text: str) -> StratagemError | None:
    return from_record(RecordedStatus.FromString(b64decode(text))) if text else None


def _id(text: str) -> bytes:
    return bytes.fromhex(text)


def _text(data: bytes) -> str:
    return b64encode(data).decode()

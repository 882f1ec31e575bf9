"""Replicas of servers: who serves, and whether another one could take over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stratagem_deploy.watching.amounts import span
from stratagem_deploy.watching.asking import ServerAnswer
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.standings import described, standing_word
from stratagem_proto.v1.replication_pb2 import STANDING_BACKUP

# A backup applies what it has as fast as the primary; more is what it does not keep up with.
_FAR_BEHIND = 1000


def replicated(answers: Sequence[ServerAnswer]) -> Mapping[str, Sequence[ServerAnswer]]:
    """Return what was said by or about each task that has replicas."""
    tasks = {
        answer.task
        for answer in answers
        if answer.place.replica is not None
        or (answer.replication is not None and not answer.replication.is_movable)
    }
    return {task: [each for each in answers if each.task == task] for task in sorted(tasks)}


def unserved(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the tasks none of whose replicas serves."""
    for task, replicas in replicated(answers).items():
        if not any(each.serves for each in replicas):
            told = "; ".join(f"{each.label} {_said(each)}" for each in replicas)
            yield Finding(
                f"no replica of {task} serves: {told}",
                "look at the logs of its replicas, and whether both reach each other and their "
                "--arbiter; start those again that have ended",
                stalls=True,
                culprits=(task,),
            )


def _said(answer: ServerAnswer) -> str:
    if answer.replication is None:
        return f"does not answer ({answer.problem})"
    return f"is: {described(answer.replication)}"


def unprotected(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the tasks that no backup could take over, and the backups that do not catch up."""
    for task, replicas in replicated(answers).items():
        others = [each for each in replicas if not each.serves]
        for primary in replicas:
            status = primary.replication
            if primary.serves and status is not None and not status.view.HasField("backup"):
                yield _without_backup(task, status.trouble, others)
            elif primary.serves and status is not None and status.behind >= _FAR_BEHIND:
                yield _behind(task, f"its backup is {status.behind} records behind")
        for other in others:
            status = other.replication
            if status is not None and status.standing == STANDING_BACKUP and status.trouble:
                yield _behind(other.label, f"it does not follow: {status.trouble}")


def _without_backup(task: str, trouble: str, others: Sequence[ServerAnswer]) -> Finding:
    told = [trouble] if trouble else []
    told += [f"{each.label} does not answer" for each in others if each.replication is None]
    told += [
        f"{each.label} {standing_word(each.replication)}{_since(each)}{_because(each)}"
        for each in others
        if each.replication is not None
    ]
    culprits = tuple(each.label for each in others) or (task,)
    return Finding(
        f"{task} has no backup: {'; '.join(told) or 'no other replica has joined it'}",
        "what it has is lost if it ends now: start its other replica, or see in its log why it "
        "does not catch up",
        culprits=culprits,
    )


def _since(answer: ServerAnswer) -> str:
    status = answer.replication
    if status is None or not status.HasField("silent_seconds"):
        return ""
    return f" and has heard of the primary {span(status.silent_seconds)} ago"


def _because(answer: ServerAnswer) -> str:
    trouble = answer.replication.trouble if answer.replication else ""
    return f": {trouble}" if trouble else ""


def _behind(label: str, what: str) -> Finding:
    return Finding(
        f"{label}: {what}",
        "look at its machine's processors and at the network between the replicas: the primary "
        "waits for its backup before it answers",
        culprits=(label,),
    )

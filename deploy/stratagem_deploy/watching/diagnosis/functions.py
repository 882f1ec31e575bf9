"""Functions of coordinators that do not end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stratagem_deploy.watching.amounts import mean, span
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.clients import task_name
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.diagnosis.waits import FUNCTION, all_waits
from stratagem_proto.v1.status_pb2 import WorkerServerStatus
from stratagem_proto.v1.waits_pb2 import Waiter

# Of what functions take on average.
_TIMES_LONGER = 10


def endless(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the functions that run for much longer than others of their worker did."""
    waiting = _waits_by_worker(answers)
    for server, status in statuses(answers):
        worker = status.worker_server
        if worker.HasField("current"):
            usual = mean(worker.seconds) or 0.0
            if worker.current.seconds > max(patience, _TIMES_LONGER * usual):
                yield _endless(server, worker, waiting.get(server))


def _endless(server: str, worker: WorkerServerStatus, wait: Waiter | None) -> Finding:
    doing = worker.current.doing or "a place that cannot be seen"
    usual = span(mean(worker.seconds) or 0.0)
    return Finding(
        f"{server} has run function {worker.current.number} for {span(worker.current.seconds)}, "
        f"its functions take {usual} on average; it is at {doing}{_for_whom(wait)}",
        "look at that line: it may wait for data, for a lock, or never end",
        stalls=bool(worker.queued) or wait is not None,
        culprits=(server,),
    )


def unreached(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the workers that do not answer while a coordinator waits for what they run."""
    waiting = _waits_by_worker(answers)
    for answer in answers:
        wait = waiting.get(answer.label)
        if answer.status is None and wait is not None and wait.seconds >= patience:
            yield Finding(
                f"{answer.label} does not answer{_for_whom(wait)}: {answer.problem}",
                "look whether its process is stopped, its machine overloaded or its network cut; "
                "others run its functions once the coordinator takes it for lost",
                stalls=True,
                culprits=(answer.label,),
            )


def _for_whom(wait: Waiter | None) -> str:
    if wait is None:
        return ""
    return f"; {task_name(wait.client)} waits {span(wait.seconds)} for {wait.subject}"


def _waits_by_worker(answers: Sequence[ServerAnswer]) -> Mapping[str, Waiter]:
    """Return the longest wait of a coordinator for each worker."""
    found: dict[str, Waiter] = {}
    waits = [wait for _, wait in all_waits(answers) if wait.reason == FUNCTION]
    for wait in sorted(waits, key=lambda each: each.seconds):
        found |= {task_name(awaited.client): wait for awaited in wait.awaited}
    return found

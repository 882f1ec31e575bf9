"""The disks of servers: of their logs and of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratagem_deploy.watching.amounts import amount, mean, span, total
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.clients import task_name
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.diagnosis.waits import PART, all_waits
from stratagem_proto.v1.status_pb2 import CheckpointStatus, LogStatus
from stratagem_proto.v1.waits_pb2 import Waiter

# Of a part of a checkpoint: any disk is faster, and smaller parts tell nothing.
_SLOW_BYTES_PER_SECOND, _TELLING_BYTES = 20e6, 10e6

# Of a batch of a log: disks that turn take 20 ms, and a batch has at most 64 MB.
_SLOW_BATCH_SECONDS, _ENOUGH_BATCHES = 0.5, 5


def stuck(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the servers whose answers wait for the disk of their log."""
    for server, status in statuses(answers):
        log = status.parameter_server.log
        if log.HasField("writing_seconds") and log.writing_seconds >= patience:
            records = log.position - log.written
            yield Finding(
                f"{server} waits {span(log.writing_seconds)} for the disk of its log, and so do "
                f"its clients: {records} records are not on disk{_because(log.failure)}",
                "look whether that disk is full, broken, or busy with something else",
                stalls=True,
                culprits=(server,),
            )


def _because(failure: str) -> str:
    return f": {failure}" if failure else ""


def slow(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers whose disks fail, or are slow."""
    for server, status in statuses(answers):
        yield from _slow_logs(server, status.parameter_server.log)
        yield from _slow_checkpoints(server, status.parameter_server.checkpoint)


def _slow_logs(server: str, log: LogStatus) -> Iterator[Finding]:
    seconds = mean(log.seconds) or 0.0
    if seconds > _SLOW_BATCH_SECONDS and total(log.seconds) >= _ENOUGH_BATCHES:
        yield Finding(
            f"{server} waits {span(seconds)} on average until a part of its log is on disk",
            "the disk is slow: use another one for --durability-folder",
            culprits=(server,),
        )


def _slow_checkpoints(server: str, saved: CheckpointStatus) -> Iterator[Finding]:
    if saved.failures:
        yield Finding(
            f"{server} could not write {saved.failures} parts of checkpoints",
            "see its log for the reason, most often a full disk or a folder of another user",
            culprits=(server,),
        )
    if saved.bytes > _TELLING_BYTES and saved.bytes < _SLOW_BYTES_PER_SECOND * saved.seconds:
        yield Finding(
            f"{server} took {span(saved.seconds)} to write {amount(saved.bytes)} of a "
            f"checkpoint to {saved.folder}",
            "the disk is slow: use another folder, or save less often",
            culprits=(server,),
        )


def late_parts(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the servers that take too long for their part of a checkpoint that is being saved."""
    sizes = {
        server: sum(one.bytes for one in status.parameter_server.totals)
        for server, status in statuses(answers)
    }
    for _, wait in all_waits(answers):
        for awaited in wait.awaited if wait.reason == PART else ():
            server = task_name(awaited.client)
            usual = patience + sizes.get(server, 0) / _SLOW_BYTES_PER_SECOND
            if server in sizes and wait.seconds > usual:
                yield _late(wait, server, sizes[server])


def _late(wait: Waiter, server: str, nbytes: int) -> Finding:
    return Finding(
        f"{wait.subject}: {task_name(wait.client)} waits {span(wait.seconds)} for the part of "
        f"{server}, whose variables have {amount(nbytes)}",
        "look whether the disk of that folder is full, broken, or busy with something else",
        stalls=True,
        culprits=(server,),
    )

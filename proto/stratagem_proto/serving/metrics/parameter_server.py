"""The figures of parameter servers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from stratagem_proto.serving.metrics.families import Families, Labels
from stratagem_proto.v1.consistency_pb2 import WorkerClock
from stratagem_proto.v1.status_pb2 import Budget, CheckpointStatus
from stratagem_proto.v1.status_pb2 import ParameterServerStatus as Status
from stratagem_proto.v1.variable_pb2 import VariableKind

_KIND = ("kind",)
_REASON = ("reason",)
_WORKER = ("optimizer", "worker")


def of_parameter_server(status: Status, families: Families) -> Iterator[Metric]:
    """Yield the families that only a parameter server has."""
    yield from _variables(status, families)
    yield from _budgets(status, families)
    yield from _waits(status, families)
    yield from _workers(status, families)
    yield from _checkpoints(status.checkpoint, families)
    yield families.number(
        "recorded_closures",
        "Changes recorded of scheduled functions that have not ended.",
        status.recorded_closures,
    )


def _variables(status: Status, families: Families) -> Iterator[Metric]:
    totals = [((_kind(total.kind),), total) for total in status.totals]
    yield families.gauge(
        "variables",
        "Variables that are hosted.",
        [(kind, total.count) for kind, total in totals],
        _KIND,
    )
    yield families.gauge(
        "variable_bytes",
        "Memory of variables; that of tables includes their index and their optimizers' state.",
        [(kind, total.bytes) for kind, total in totals],
        _KIND,
    )
    rows = sum(total.table_rows for total in status.totals)
    yield families.number("table_rows", "Rows that embedding tables have stored.", rows)


def _kind(kind: VariableKind) -> str:
    return VariableKind.Name(kind).removeprefix("VARIABLE_KIND_").lower()


def _budgets(status: Status, families: Families) -> Iterator[Metric]:
    room: Budget | None = status.room if status.HasField("room") else None
    yield families.number(
        "staged_bytes",
        "Bytes of requests until they are applied, and of answers until they are sent.",
        status.staged.used,
    )
    yield families.number(
        "staged_limit_bytes", "The limit of stratagem_staged_bytes.", status.staged.limit
    )
    yield families.number(
        "variable_limit_bytes",
        "The limit of the memory of variables, if --variable-bytes is given.",
        room.limit if room else None,
    )


def _waits(status: Status, families: Families) -> Iterator[Metric]:
    yield families.gauge(
        "waiting_requests",
        "Requests that wait for other tasks now.",
        [((wait.reason,), wait.waiting) for wait in status.waits],
        _REASON,
    )
    yield families.histogram(
        "wait_seconds",
        "How long requests have waited for other tasks.",
        [((wait.reason,), wait.seconds) for wait in status.waits],
        _REASON,
    )


def _workers(status: Status, families: Families) -> Iterator[Metric]:
    clocks = [*_clocks(status)]
    yield families.counter(
        "worker_steps",
        "The last step that a worker has finished or skipped.",
        [(labels, clock.finished) for labels, clock in clocks],
        _WORKER,
    )
    yield families.gauge(
        "worker_present",
        "1 while a worker has an open session, 0 once it is gone.",
        [(labels, not clock.gone) for labels, clock in clocks],
        _WORKER,
    )
    yield families.bit_length_histogram(
        "staleness_steps",
        "Steps that others finished while a worker took one.",
        [(labels, clock.staleness) for labels, clock in clocks],
        _WORKER,
    )
    yield families.counter(
        "dropped_contributions",
        "Contributions that came too late for their step.",
        [(labels, clock.dropped) for labels, clock in clocks],
        _WORKER,
    )


def _clocks(status: Status) -> Iterator[tuple[Labels, WorkerClock]]:
    for group in status.groups:
        for clock in group.workers:
            worker = clock.task.removeprefix("/job:").replace("/task:", ":")
            yield (group.group, worker), clock


def _checkpoints(status: CheckpointStatus, families: Families) -> Iterator[Metric]:
    known = status if status.HasField("age_seconds") else None
    yield families.counter("checkpoints", "Parts of checkpoints written.", [((), status.saves)])
    yield families.counter(
        "checkpoint_failures",
        "Parts of checkpoints that could not be written.",
        [((), status.failures)],
    )
    yield families.number(
        "checkpoint_age_seconds",
        "Time since the last part was written; absent before the first part of this run.",
        known.age_seconds if known else None,
    )
    yield families.number(
        "checkpoint_bytes",
        "Size of the last part that was written.",
        known.bytes if known else None,
    )
    yield families.number(
        "checkpoint_seconds",
        "How long writing the last part took.",
        known.seconds if known else None,
    )

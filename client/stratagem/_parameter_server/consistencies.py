"""Consistencies and reports of them, as they travel and as users see them."""

from __future__ import annotations

from stratagem.consistency import KINDS, Consistency, ConsistencyReport, WorkerReport
from stratagem_proto.consistency import message_named, name_of
from stratagem_proto.v1 import consistency_pb2 as pb


def encoded_consistency(consistency: Consistency) -> pb.Consistency:
    """Return a consistency for servers."""
    return message_named(consistency._name, **consistency._fields())


def decoded_consistency(message: pb.Consistency) -> Consistency:
    """Return a consistency that came from a server."""
    return KINDS[name_of(message)]._of(message)


def report_of(group: pb.GroupConsistency) -> ConsistencyReport:
    """Return what a server reports of a group, for users."""
    consistency = decoded_consistency(group.consistency)
    workers = {worker.task: _worker_report_of(worker) for worker in group.workers}
    return ConsistencyReport(consistency, group.since, workers)


def _worker_report_of(worker: pb.WorkerClock) -> WorkerReport:
    staleness = {
        # Bucket i begins at 2^(i-1), the first one at 0.
        1 << bucket >> 1: count
        for bucket, count in enumerate(worker.staleness)
        if count
    }
    return WorkerReport(worker.finished, worker.dropped, staleness, worker.gone)

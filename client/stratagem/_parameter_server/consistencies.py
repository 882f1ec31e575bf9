"""Consistencies and reports of them, as they travel and as users see them."""

from __future__ import annotations

from stratagem.consistency import (
    Async,
    Bounded,
    Consistency,
    ConsistencyReport,
    Sync,
    WorkerReport,
)
from stratagem_proto.v1 import consistency_pb2 as pb


def encoded(consistency: Consistency) -> pb.Consistency:
    """Return a consistency for servers."""
    match consistency:
        case Bounded(steps):
            return pb.Consistency(mode=pb.CONSISTENCY_MODE_BOUNDED, bound=steps)
        case Sync(enough):
            return pb.Consistency(
                mode=pb.CONSISTENCY_MODE_SYNC, replicas_to_aggregate=enough or 0
            )
    return pb.Consistency(mode=pb.CONSISTENCY_MODE_ASYNC)


def decoded(group: pb.GroupConsistency) -> ConsistencyReport:
    """Return what a server reports of a group, for users."""
    workers = {worker.task: _worker(worker) for worker in group.workers}
    return ConsistencyReport(consistency_of(group.consistency), group.since, workers)


def consistency_of(consistency: pb.Consistency) -> Consistency:
    """Return a consistency that came from a server."""
    match consistency.mode:
        case pb.CONSISTENCY_MODE_BOUNDED:
            return Bounded(consistency.bound)
        case pb.CONSISTENCY_MODE_SYNC:
            return Sync(consistency.replicas_to_aggregate or None)
    return Async()


def _worker(worker: pb.WorkerClock) -> WorkerReport:
    staleness = {
        # Bucket i begins at 2^(i-1), the first one at 0.
        1 << bucket >> 1: count
        for bucket, count in enumerate(worker.staleness)
        if count
    }
    return WorkerReport(worker.finished, worker.dropped, staleness, worker.gone)

"""The figures of worker servers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from stratagem_proto.serving.metrics.families import Families
from stratagem_proto.v1.status_pb2 import WorkerServerStatus


def of_worker_server(status: WorkerServerStatus, families: Families) -> Iterator[Metric]:
    """Yield the families that only a worker server has."""
    yield families.number("closures_running", "Functions that run now: 0 or 1.", status.running)
    yield families.number("closures_queued", "Functions that wait to run.", status.queued)
    yield families.counter(
        "closures",
        "Functions that have ended, by outcome.",
        [((outcome,), count) for outcome, count in sorted(status.ended.items())],
        ("outcome",),
    )
    yield families.histogram("closure_seconds", "How long functions ran.", [((), status.seconds)])
    yield families.number(
        "staying_results", "Large results that stay on this worker.", status.staying_results
    )
    yield families.number(
        "staying_result_bytes", "Bytes of these results.", status.staying_result_bytes
    )
    yield families.number("gpus", "GPUs that functions can use.", status.gpus)

"""What a worker counts of the functions that it runs."""

from __future__ import annotations

import threading
from collections import Counter

from stratagem_proto.serving.figures import SECONDS, Distribution
from stratagem_proto.v1 import worker_pb2 as pb


class ClosureFigures:
    """How functions ended, and how long they ran. Thread-safe.

    Attributes:
        ended: How many, by how they ended.
        seconds: How long they ran.
    """

    def __init__(self) -> None:
        self.ended = Counter[str]()
        self.seconds = Distribution(SECONDS)
        self._counting = threading.Lock()

    def count(self, end: pb.Finished, seconds: float) -> None:
        """Counts a function that has ended."""
        how = "OK"
        if end.HasField("failure"):
            how = pb.FailureKind.Name(end.failure.kind).removeprefix("FAILURE_KIND_")
        with self._counting:
            self.ended[how] += 1
            self.seconds.observe(seconds)

"""The thread in which a worker carries out what takes time."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from stratagem_proto.server_log import LOG
from stratagem_proto.serving.figures import SECONDS, Histogram
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.status_pb2 import RunningFunction
from stratagem_proto.whereabouts import whereabouts


class ClosureFigures:
    """Counts how functions ended, and how long they ran. Thread-safe."""

    def __init__(self) -> None:
        self.ended = Counter[str]()
        self.seconds = Histogram(SECONDS)
        self._counting = threading.Lock()

    def count(self, end: pb.Finished, seconds: float) -> None:
        """Count a function that has ended."""
        how = "OK"
        if end.HasField("failure"):
            how = pb.FailureKind.Name(end.failure.kind).removeprefix("FAILURE_KIND_")
        with self._counting:
            self.ended[how] += 1
            self.seconds.observe(seconds)


_END_SECONDS = 1.0


class Job(NamedTuple):
    """Something to do for a session; `closure` is the function that it runs, if it runs one."""

    session: object
    closure: int | None
    work: Callable[[], None]


class Executor:
    """Does jobs one at a time, in the order in which they come. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.figures = ClosureFigures()
        self._jobs: deque[Job] = deque()
        self._job: Job | None = None
        self._began = 0.0
        self._changing = threading.Lock()
        # One for each job that came, and one for the end. A condition has more to do.
        self._news: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin with the jobs."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Do a job when those before are done."""
        with self._changing:
            self._jobs.append(job)
        self._news.put(True)

    def withdraw(self, which: Callable[[Job], bool]) -> list[Job]:
        """Take back jobs that have not begun."""
        with self._changing:
            taken = [job for job in self._jobs if which(job)]
            self._jobs = deque(job for job in self._jobs if job not in taken)
            return taken

    @property
    def has_more(self) -> bool:
        """Whether there is something to do after what is being done."""
        return bool(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        with self._changing:
            return self._job is None and not self._jobs

    @property
    def running(self) -> bool:
        """Whether it runs a function."""
        job = self._job
        return job is not None and job.closure is not None

    def current(self) -> RunningFunction | None:
        """Return which function it runs, since when and where; None while it runs none."""
        job, began = self._job, self._began
        if job is None or job.closure is None:
            return None
        return RunningFunction(
            number=job.closure,
            seconds=time.monotonic() - began,
            doing=whereabouts(self._thread.ident or 0),
        )

    @property
    def queued(self) -> int:
        """How many functions wait."""
        with self._changing:
            return sum(job.closure is not None for job in self._jobs)

    def close(self) -> None:
        """Let the thread end after the jobs there are; wait a moment for it."""
        self._news.put(False)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while self._news.get():
            try:
                self._do_next()
            except Exception:
                LOG.exception("a job failed")

    def _do_next(self) -> None:
        with self._changing:
            # It may have been withdrawn.
            self._began = time.monotonic()
            self._job = job = self._jobs.popleft() if self._jobs else None
        try:
            if job is not None:
                job.work()
        finally:
            self._job = None

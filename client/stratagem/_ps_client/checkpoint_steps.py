"""The steps of a client, as servers and checkpoints tell apart what belongs together."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from statistics import median
from typing import NamedTuple, Protocol

from stratagem._core.contexts import get_replica_context, has_strategy
from stratagem._core.scalars import Scalars
from stratagem._ps_client.names import is_running
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.session_pb2 import CountedStep
from stratagem_proto.v1.session_pb2 import StepPace as StepPaceMessage

_LAST = 16
# Of fewer steps, the first of which compile and allocate, nothing is told.
_ENOUGH = 5


class StepPace:
    """Measures the steps of a program's first optimizer, each from the end of the one before.

    What the program's thread and those of its replicas wait for is left out, so that who waits for
    a slow task does not seem slow. Steps of scheduled functions do not count, since a worker waits
    for functions between them. Thread-safe.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._optimizer, self._thread = "", 0
        # How many threads wait, since when any does, and for how long any did before.
        self._waiting, self._since, self._waited = 0, 0.0, 0.0
        # When the last step ended, and how long any thread had waited by then.
        self._last = (0.0, 0.0)
        self._own: deque[float] = deque(maxlen=_LAST)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave out what this thread waits for meanwhile."""
        counts = self.begin_wait()
        try:
            yield
        finally:
            if counts:
                self.end_wait()

    def begin_wait(self) -> bool:
        """Begin a wait, if those of this thread are the program's; then `end_wait` must follow."""
        if threading.get_ident() != self._thread and not (
            has_strategy() and get_replica_context() is not None
        ):
            return False
        with self._lock:
            if not self._waiting:
                self._since = self._clock()
            self._waiting += 1
        return True

    def end_wait(self) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._waited += self._clock() - self._since

    def step_ended(self, optimizer: str) -> None:
        thread, now = threading.get_ident(), self._clock()
        with self._lock:
            self._optimizer = self._optimizer or optimizer
            if optimizer != self._optimizer or is_running():
                return
            ended, waited = self._last
            self._last = (now, self._waited)
            # Of threads that take turns, nobody knows whose time it was.
            if thread == self._thread:
                self._own.append(max(now - ended - (self._waited - waited), 0.0))
            self._thread = thread

    def message(self) -> StepPaceMessage | None:
        """Return what servers are told; None while there were too few steps."""
        with self._lock:
            if len(self._own) < _ENOUGH:
                return None
            return StepPaceMessage(steps=len(self._own), own_seconds=median(self._own))


class FinishedStep(NamedTuple):
    """The last of a client's steps that is over, and what to save in a checkpoint after it."""

    step: int
    report: bytes


ONLY_SHARES = (
    "what a step changes besides would be changed again when the program goes on from the last "
    "share, as steps since then are taken again. Change it outside of the loop over "
    "strategy.steps(), count by range(), or take DistributedOptimizers"
)


class ProgramStep:
    """A step as the program counts them, while it takes it. Thread-safe.

    Args:
        number: Its number, from 1.
        report: A `WorkerReport` as of its beginning.

    Attributes:
        has_trained: Whether it has changed variables.
        is_local: Whether it has local steps that were not shared, and changes nothing until then.
    """

    def __init__(self, number: int, report: bytes) -> None:
        self._number, self._report = number, report
        self._ordinals: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.has_trained = self.is_local = False

    def key(self, server: str, is_applied_once: bool) -> CountedStep:
        """Say that the next request to a server is a part of it.

        Those that are applied once are numbered, the same when the step is repeated.
        """
        ordinal = 0
        if is_applied_once:
            with self._counting:
                self._ordinals[server] += 1
                ordinal = self._ordinals[server]
        return CountedStep(number=self._number, ordinal=ordinal, report=self._report)


# The requests by which programs change variables, but for restorations.
_TRAINING = frozenset({"Assign", "Update", "CommitContribution"})


class CountedRequest(Protocol):
    """A request that may be a part of a counted step."""

    @property
    def method(self) -> str:
        """Its name on the wire."""
        ...

    @property
    def is_applied_once(self) -> bool:
        """Whether a counted step that is repeated does not apply it again."""
        ...


class _ThreadStep(threading.local):
    step = 0
    program_step: ProgramStep | None = None


class CheckpointSteps:
    """Numbers the steps of a client, the same on all servers. Thread-safe.

    A step is what happens while `step_scope` is entered, from the first thread that enters it to
    the last that leaves. A checkpoint has all of a step or nothing.

    Attributes:
        pace: How long the program takes for steps of its optimizers.
        scalars: What the program has logged.
        program_step: The step that the program counts and takes now, if it counts them.
        has_trained: Whether this process has changed variables, or set them.
    """

    def __init__(self) -> None:
        self.pace: StepPace = StepPace()
        self.scalars: Scalars = Scalars()
        self.program_step: ProgramStep | None = None
        self.has_trained = False
        self._program_step_apart: ProgramStep | None = None
        self._lock = threading.Lock()
        self._inside = 0
        self._current = 0
        self._apart = 0
        self._own = _ThreadStep()
        self._reported = 0
        self._kept = b""
        self._report = b""
        # Reports of steps that have ended while a step before them has not.
        self._reports: deque[FinishedStep] = deque()
        # An Event takes its lock in Python, where Ctrl-C may leave it taken.
        self._ends: SimpleQueue[None] = SimpleQueue()

    def step_scope(self) -> AbstractContextManager[None]:
        """Make all that is sent within the scope one step."""
        return _StepScope(self)

    def enter(self) -> bool:
        """Begin a part of a step; return whether `leave` must follow."""
        if self._own.step:
            return False
        with self._lock:
            self._current += not self._inside
            self._inside += 1
        return True

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._end(self._kept)

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """End the step that this thread takes, and begin another one afterwards.

        It waits for other threads meanwhile, which may wait in turn for the end of its step.
        """
        self.leave()
        try:
            yield
        finally:
            self.enter()

    def divide(self) -> None:
        """End the step that this thread takes, and begin another one."""
        self.leave()
        self.enter()

    def set_apart(self) -> int:
        """Begin a part of the present step that may outlast it; one at a time.

        Returns the step, for `taking_apart`, which must follow.
        """
        with self._lock:
            self._current += not self._inside
            self._apart = self._current
            self._program_step_apart = self.program_step
            return self._apart

    def taking_apart(self, step: int) -> AbstractContextManager[None]:
        """Make what this thread sends meanwhile a part of a step, and end the part.

        The step is perhaps not the one that other threads take.
        """
        return _OutlastingScope(self, step)

    def _leave_apart(self) -> None:
        self._own.step, self._own.program_step = 0, None
        with self._lock:
            self._apart = 0
            self._publish()

    def _end(self, report: bytes) -> None:
        self._reports.append(FinishedStep(self._current, report))
        self._publish()

    def _publish(self) -> None:
        while self._reports and self._reports[0].step <= self._over:
            self._report = self._reports.popleft().report
        # A thread that has not seen the last end yet looks at all that is over when it does.
        if self._ends.empty():
            self._ends.put(None)

    def counted(self, server: str, request: CountedRequest) -> CountedStep | None:
        """Say which of the program's steps a request, the next of this thread, is a part of."""
        step = self._own.program_step if self._own.step else self.program_step
        if request.method in _TRAINING:
            self.has_trained = True
            if step is not None and step.is_local:
                raise FailedPreconditionError(
                    "the program has changed a variable in a step of strategy.steps() with local "
                    f"steps that were not shared: {ONLY_SHARES}"
                )
            if step is not None:
                step.has_trained = True
        return step.key(server, request.is_applied_once) if step is not None else None

    def prepare(self, report: bytes) -> None:
        """Save a report in the checkpoints that contain the next step that ends."""
        with self._lock:
            self._kept = report

    def keep(self, report: bytes) -> None:
        """Save a report in the checkpoints that contain the step that is being taken."""
        with self._lock:
            self._kept = report
            if not self._inside:
                self._end(report)

    @property
    def _over(self) -> int:
        over = self._current - (self._inside > 0)
        return min(over, self._apart - 1) if self._apart else over

    @property
    def current(self) -> int:
        """The step that is being taken; 0 if none is."""
        with self._lock:
            return self._own.step or (self._current if self._inside else 0)

    @property
    def begun(self) -> int:
        with self._lock:
            return self._current

    def finished_step(self) -> FinishedStep:
        """Return what is over, for a message to a server."""
        return self.current_and_finished()[1]

    def current_and_finished(self) -> tuple[int, FinishedStep]:
        """As `current` and `finished_step`, at one moment."""
        with self._lock:
            self._reported = self._over
            present = self._own.step or (self._current if self._inside else 0)
            return present, FinishedStep(self._reported, self._report)

    def unreported_step(self) -> int:
        """Return the last step that is over, if no server knows that yet; else 0."""
        with self._lock:
            over = self._over
            return over if over > self._reported else 0

    def wait_for_end(self, seconds: float) -> bool:
        try:
            self._ends.get(timeout=seconds)
        except Empty:
            return False
        return True

    def wake(self) -> None:
        self._ends.put(None)


class _StepScope(AbstractContextManager[None]):
    """A part of a step; see `CheckpointSteps.taking`."""

    __slots__ = ("_entered", "_steps")

    def __init__(self, steps: CheckpointSteps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        self._entered = self._steps.enter()

    def __exit__(self, *_: object) -> None:
        if self._entered:
            self._steps.leave()


class _OutlastingScope(AbstractContextManager[None]):
    """A part of a step that outlasts it; see `CheckpointSteps.taking_apart`."""

    __slots__ = ("_step", "_steps")

    def __init__(self, steps: CheckpointSteps, step: int) -> None:
        self._steps, self._step = steps, step

    def __enter__(self) -> None:
        own = self._steps._own
        own.step, own.program_step = self._step, self._steps._program_step_apart

    def __exit__(self, *_: object) -> None:
        self._steps._leave_apart()

"""One worker server, as the coordinator deals with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import count

from stratagem._coordinator.closure import Closure
from stratagem._coordinator.data.worker_values import WorkerValue
from stratagem._shipping.parcel import Definition, Parcel
from stratagem._worker_client.closure_failure import ClosureAnswer, Reply
from stratagem._worker_client.link import WorkerLink
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.worker_pb2 import RESULT_USE_LARGE_STAYS, RESULT_USE_NONE, ResultPlace, Run

SHALLOWEST = 2
"""One to run, and the next, for which it need not wait then."""

DEEPEST = 64
"""Short closures travel together, and so do their results."""

_SECONDS = 0.02
"""Work that a worker should have, several times the round trip to it."""

_SHARE = 1 / 8
"""Weight of the last closure in the mean."""


class PrefetchDepth:
    """Tells from the time that closures take how many of them a worker should have.

    Short closures hide the round trip only if there are many. Of long ones, no worker should have
    some that another could run.

    Attributes:
        depth: How many it should have.
        since: When it had none before, or one of them ended last.
    """

    def __init__(self) -> None:
        self.depth = SHALLOWEST
        self._seconds = _SECONDS
        self._given = 0
        self.since = 0.0

    def gave(self, now: float) -> None:
        """Take note that the worker was given a closure now, in seconds."""
        if not self._given:
            self.since = now
        self._given += 1

    def ended(self, now: float) -> None:
        """Take note that one of its closures has ended."""
        self._given -= 1
        # Results that come together count as one that took long and some that took no time.
        self._seconds += _SHARE * (now - self.since - self._seconds)
        self.since = now
        fitting = _SECONDS / max(self._seconds, _SECONDS / DEEPEST)
        self.depth = max(int(fitting), SHALLOWEST)


class RemoteWorker:
    """A connection to a worker, and what was sent over it.

    A worker that comes back is another `RemoteWorker`: it has nothing of what the earlier one had.
    Not thread-safe.
    """

    def __init__(self, index: int, link: WorkerLink, numbers: count[int]) -> None:
        self.index = index
        self._link = link
        self._numbers = numbers
        self._revisions: dict[int, int] = {}
        self._remote_objects: set[int] = set()
        self._failed: dict[int, BaseException] = {}
        self._staying: dict[int, int] = {}
        self._pace = PrefetchDepth()

    @property
    def there(self) -> bool:
        """Whether the connection goes on."""
        return self._link.connected

    @property
    def name(self) -> str:
        """The name of the task, as in "/job:worker/task:1"."""
        return self._link.task

    @property
    def busy_since(self) -> float:
        """When it began with what it runs now, by the monotonic clock."""
        return self._pace.since

    def run(self, closure: Closure, reply: Reply) -> None:
        """Send a closure, after what it names and the worker has not got yet."""
        self._send_needs(closure.parcel)
        self._pace.gave(time.monotonic())
        wish = RESULT_USE_LARGE_STAYS if closure.result.needed else RESULT_USE_NONE
        order = Run(closure=closure.number, identity=closure.identity, use=wish)
        self._link.begin(order, closure.parcel.payload, reply)

    def ended(self) -> int:
        """Take note that a closure has ended; return how many it should have."""
        self._pace.ended(time.monotonic())
        return self._pace.depth

    def keep(self, closure: Closure) -> None:
        """Let the result of a closure stay on it while somebody may need that."""
        closure.result.stay(self)
        self._staying[closure.result._shipped_handle()] = closure.number

    def drop(self, closure: Closure) -> None:
        """Let it forget a result that stays there."""
        self._link.release((), [closure.number])

    def send_back(self, closure: Closure) -> Future[ClosureAnswer]:
        """Ask for a copy of a result that stays on the worker."""
        closure.result.copying = True
        return self._link.send_back(closure.number)

    def call(self, call: Parcel) -> Future[ClosureAnswer]:
        """Send a call that is no closure; return its result to come."""
        self._send_needs(call)
        return self._link.run(next(self._numbers), call.payload)

    def cancel(self, closure: int, interrupt: bool) -> None:
        """Ask it to give up a closure, even one that has begun if `interrupt`."""
        self._link.cancel(closure, interrupt)

    def release(self, handles: Iterable[int]) -> None:
        """Let it forget those of some objects that it has."""
        handles = list(handles)
        staying = [self._staying.pop(one) for one in handles if one in self._staying]
        known = [one for one in handles if self._forget(one)]
        if known or staying:
            self._link.release(known, staying)

    def provide_anew(self, closure: Closure) -> None:
        """Send what a closure takes once more when that is run again."""
        results = {one._shipped_handle() for one in closure.inputs}
        failed = closure.parcel.remote_objects.keys() & self._failed.keys()
        self._remote_objects -= results | failed

    def failure_of_input(self, parcel: Parcel) -> BaseException | None:
        """Return why it could not make something that a call takes. Spec: ERR-9."""
        failures = map(self._failed.get, parcel.remote_objects)
        return next(filter(None, failures), None)

    def when_ended(self, tell: Callable[[StratagemError], None]) -> None:
        """Let a function know when the connection ends, and why."""
        self._link.when_ended(tell)

    def when_leaving(self, tell: Callable[[], None]) -> None:
        """Let a function know when the worker is about to stop."""
        self._link.when_leaving(tell)

    def close(self) -> None:
        """End the session; what is under way fails."""
        self._link.close()

    # What it is to keep.

    def define(self, definition: Definition) -> None:
        """Let it make an object when it is first needed."""
        self._link.define(definition.handle, definition.encode())

    def take(self, handle: int, place: ResultPlace) -> None:
        """Let it copy the result of a closure from the worker that has it."""
        self._link.take(handle, place)

    def place(self, closure: int) -> ResultPlace:
        """Return where others can copy a result from that stays on this worker."""
        return self._link.place(closure)

    def build(self, handle: int, call: Parcel) -> None:
        """Let it keep what a call returns, before it runs what is sent later."""
        self._send_needs(call)
        future = self._link.run(next(self._numbers), call.payload, keep_as=handle)
        future.add_done_callback(partial(self._built, handle))

    def _built(self, handle: int, future: Future[ClosureAnswer]) -> None:
        error = future.exception()
        if error is not None:
            self._failed[handle] = error

    def _send_needs(self, parcel: Parcel) -> None:
        for definition in parcel.missing(self._revisions):
            self._revisions[definition.handle] = definition.revision
            self.define(definition)
        for value in parcel.remote_objects.values():
            if isinstance(value, WorkerValue):
                self._send_value(value)

    def _send_value(self, value: WorkerValue) -> None:
        handle = value._shipped_handle()
        if handle not in self._remote_objects:
            self._remote_objects.add(handle)
            self._failed.pop(handle, None)
            value._provide(self)

    def _forget(self, handle: int) -> bool:
        known = handle in self._remote_objects or handle in self._revisions
        self._remote_objects.discard(handle)
        self._revisions.pop(handle, None)
        self._failed.pop(handle, None)
        return known

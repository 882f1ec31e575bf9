"""The workers of a coordinator: which belong to it, which are there, and what is sent to them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue

from stratagem._cluster.tasks import COORDINATOR
from stratagem._coordinator.closure import Closure
from stratagem._coordinator.per_worker import WorkerValue
from stratagem._core.waiting import Awaited, Wait
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.session import Identity
from stratagem._ps_client.transport import TrafficMeter
from stratagem._remote_objects.variables import servers_of
from stratagem._shipping.kinds import Definition, Parcel
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._worker_client.link import WorkerLink, task_at
from stratagem._worker_client.wire import Batchers, ClosureAnswer, Reply
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, Task
from stratagem_proto.v1.worker_pb2 import RESULT_USE_LARGE_STAYS, RESULT_USE_NONE, ResultPlace, Run
from stratagem_rpc.channel import Deadlines

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
        if not self._given:
            self.since = now
        self._given += 1

    def ended(self, now: float) -> None:
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
        self.link = link
        self._numbers = numbers
        self._revisions: dict[int, int] = {}
        self._remote_objects: set[int] = set()
        self._failed: dict[int, BaseException] = {}
        self._staying: dict[int, int] = {}
        self._pace = PrefetchDepth()

    @property
    def there(self) -> bool:
        return self.link.connected

    @property
    def name(self) -> str:
        """The name of the task, as in "/job:worker/task:1"."""
        return self.link.task

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
        self.link.begin(order, closure.parcel.payload, reply)

    def ended(self) -> int:
        """Take note that a closure has ended; return how many it should have."""
        self._pace.ended(time.monotonic())
        return self._pace.depth

    def keep(self, closure: Closure) -> None:
        """Let the result of a closure stay on it while somebody may need that."""
        closure.result.stay(self)
        self._staying[closure.result._shipped_handle()] = closure.number

    def drop(self, closure: Closure) -> None:
        self.link.release((), [closure.number])

    def send_back(self, closure: Closure) -> Future[ClosureAnswer]:
        closure.result.copying = True
        return self.link.send_back(closure.number)

    def call(self, call: Parcel) -> Future[ClosureAnswer]:
        """Send a call that is no closure; return its result to come."""
        self._send_needs(call)
        return self.link.run(next(self._numbers), call.payload)

    def release(self, handles: Iterable[int]) -> None:
        """Let it forget objects that nothing names any more; those that it never had count not."""
        known, staying = list[int](), list[int]()
        for handle in handles:
            if handle in self._staying:
                staying.append(self._staying.pop(handle))
            if handle in self._remote_objects or handle in self._revisions:
                known.append(handle)
            self._remote_objects.discard(handle)
            self._revisions.pop(handle, None)
            self._failed.pop(handle, None)
        if known or staying:
            self.link.release(known, staying)

    def send_inputs_again(self, closure: Closure) -> None:
        """Send what a closure takes once more when that is run again."""
        results = {one._shipped_handle() for one in closure.inputs}
        failed = closure.parcel.remote_objects.keys() & self._failed.keys()
        self._remote_objects -= results | failed

    def failure_of_input(self, parcel: Parcel) -> BaseException | None:
        """Return why it could not make something that a call takes. Spec: ERR-9."""
        failures = map(self._failed.get, parcel.remote_objects)
        return next(filter(None, failures), None)

    # What it is to keep: see `Keeper`.

    def define(self, definition: Definition) -> None:
        self.link.define(definition.handle, definition.encode())

    def take(self, handle: int, place: ResultPlace) -> None:
        self.link.take(handle, place)

    def place(self, closure: int) -> ResultPlace:
        return self.link.place(closure)

    def build(self, handle: int, call: Parcel) -> None:
        self._send_needs(call)
        future = self.link.run(next(self._numbers), call.payload, keep_as=handle)

        def note_failure(future: Future[ClosureAnswer]) -> None:
            if (error := future.exception()) is not None:
                self._failed[handle] = error

        future.add_done_callback(note_failure)

    def _send_needs(self, parcel: Parcel) -> None:
        for definition in parcel.missing(self._revisions):
            self._revisions[definition.handle] = definition.revision
            self.define(definition)
        for value in parcel.remote_objects.values():
            if not isinstance(value, WorkerValue):
                continue
            handle = value._shipped_handle()
            if handle not in self._remote_objects:
                self._remote_objects.add(handle)
                self._failed.pop(handle, None)
                value._provide(self)


class GpuCounts:
    """Lets workers in that have as many GPUs as those before.

    Any worker runs any function, with one replica for each of its GPUs, so that results of workers
    with other numbers would mean something else.

    Spec: PS2-7.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def admit(self, worker: int, count: int) -> None:
        """Take note of how many GPUs a worker has; one that is known was started again.

        Raises:
            InvalidArgumentError: Another one has more or fewer.
        """
        for other, known in self._counts.items():
            if other != worker and known != count:
                raise InvalidArgumentError(
                    f"Mismatched number of GPUs per worker: /job:worker/task:{worker} "
                    f"has {count} and /job:worker/task:{other} has {known}; give the "
                    "strategy num_replicas_per_worker, or all workers as many by "
                    "CUDA_VISIBLE_DEVICES",
                    task=f"/job:worker/task:{worker}",
                )
        self._counts = {**self._counts, worker: count}

    def forget(self, worker: int) -> None:
        self._counts = {one: n for one, n in self._counts.items() if one != worker}


# Attempts follow each other for as long as it takes.
_ATTEMPT = Deadlines(connect=5.0)


def require_suited(strategy: object) -> None:
    """Check that workers can run functions under a strategy. Spec: COO-1.

    Raises:
        InvalidArgumentError: They cannot.
    """
    if not isinstance(strategy, ParameterServerStrategy):
        raise InvalidArgumentError(
            "Only `ParameterServerStrategy` is supported by ClusterCoordinator, not "
            f"{type(strategy).__name__}; other strategies train in this process"
        )
    extended = strategy.extended
    if not isinstance(extended, ParameterServerExtended):
        raise InvalidArgumentError(
            "Cluster spec must be non-empty: ClusterCoordinator needs a cluster with "
            "parameter servers and workers, but the strategy has none; give it a "
            f"cluster_resolver, or set TF_CONFIG. {COORDINATOR}"
        )
    _require_coordinating(extended)
    consistency = strategy._settings.consistency
    if not consistency._is_free:
        raise InvalidArgumentError(
            "Under a ClusterCoordinator any worker runs any function, so workers "
            f"cannot take steps together, but the strategy's consistency is "
            f'{consistency}; make it with consistency="async"'
        )
    extended.require_may_coordinate()


def _require_coordinating(extended: ParameterServerExtended) -> None:
    member = extended._membership
    if member.task_type != "chief":
        raise InvalidArgumentError(
            f"ClusterCoordinator is for the chief, but this program is {member.name}: "
            "start it by `stratagem run --coordinators 1`, or on several machines as the chief, "
            f"and the workers by `stratagem worker`. {COORDINATOR}",
            task=member.name,
        )
    if not member.cluster.as_dict().get("worker"):
        raise InvalidArgumentError(
            "There must be at least one worker for a ClusterCoordinator, but "
            f"{member.cluster} has none; add the addresses of worker servers. "
            f"{COORDINATOR}"
        )


class Connector:
    """Connects to workers for a strategy. It does not keep the strategy alive."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        numbers: count[int],
        meter: TrafficMeter,
        batchers: Batchers,
        outcomes: OutcomeForm,
    ) -> None:
        self._identity = _identity_of(strategy)
        self._note_heard = servers_of(strategy).note_heard
        self._outcomes = outcomes
        self._numbers = numbers
        self._meter = meter
        self._batchers = batchers
        takes_all_gpus = strategy._settings.num_replicas_per_worker is None
        self._counts = GpuCounts() if takes_all_gpus else None

    def __call__(self, index: int, address: str) -> RemoteWorker:
        """Connect to one; raise as `WorkerLink.connect`, and for its GPUs."""
        task = Task(job="worker", index=index)
        link = WorkerLink(address, task, self._identity, _ATTEMPT)
        link.meter, link.batchers = self._meter, self._batchers
        link.outcomes, link.on_reached = self._outcomes, self._note_heard
        link.connect()
        if self._counts is not None:
            try:
                self._counts.admit(index, link.gpus)
            except InvalidArgumentError:
                link.close()
                raise
        return RemoteWorker(index, link, self._numbers)

    def forget(self, index: int) -> None:
        if self._counts is not None:
            self._counts.forget(index)


def worker_at(address: str, strategy: ParameterServerStrategy) -> int:
    task = task_at(address, _identity_of(strategy), _ATTEMPT)
    if task.job != "worker":
        raise FailedPreconditionError(
            f"/job:{task.job}/task:{task.index} answers at {address}, and only tasks "
            "of the job worker join a coordinator; start the server with --job worker"
        )
    return task.index


def _identity_of(strategy: ParameterServerStrategy) -> Identity:
    return replace(servers_of(strategy).identity, role=ROLE_COORDINATOR)


_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Events:
    """What an attendant calls: `ready` with each new connection, others with errors.

    `refused` is for a worker that is there but cannot be used, and `missed` is for each attempt to
    reach one that is not there.
    """

    ready: Callable[[Attendant, RemoteWorker], None]
    refused: Callable[[Attendant, StratagemError], None]
    missed: Callable[[Attendant, StratagemError], None]


class Attendant:
    """Connects to one worker, again whenever it was lost. Spec: FLT-2, FLT-4, FLT-12."""

    def __init__(
        self, index: int, address: str, connect: Callable[[], RemoteWorker], events: Events
    ) -> None:
        self.index = index
        self._address = address
        self._connect = connect
        self._events = events
        self._closed = False
        self._seeking = self._new_wait()
        # Of this kind because the garbage collector may call `close` anywhere.
        self._news: SimpleQueue[bool] = SimpleQueue()

    def start(self, delay: float) -> None:
        """Start the thread, which connects first after `delay` seconds."""
        name = f"stratagem-worker-{self.index}"
        threading.Thread(target=self._run, args=(delay,), name=name, daemon=True).start()

    def reconnect(self) -> None:
        """Let the thread give up the connection and make another one."""
        self._news.put(False)

    def close(self) -> None:
        """Let the thread give up the connection and end."""
        self._news.put(True)
        # The attempt under way may last.
        self._seeking.end()

    def _run(self, delay: float) -> None:
        self._wait(delay)
        while worker := self._connected():
            self._events.ready(self, worker)
            self._wait()
            worker.link.close()

    def _connected(self) -> RemoteWorker | None:
        pause = _PAUSE_SECONDS
        with self._new_wait() as self._seeking:
            while not self._closed:
                try:
                    return self._connect()
                except UnavailableError as error:
                    self._events.missed(self, error)
                except StratagemError as error:
                    self._events.refused(self, error)
                self._wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return None

    def _new_wait(self) -> Wait:
        task = f"/job:worker/task:{self.index}"
        awaited = Awaited.one_task(task, f"worker {self.index}", "server")
        return Wait("the coordinator", f"{task} at {self._address}", awaited=awaited)

    def _wait(self, seconds: float | None = None) -> None:
        with suppress(Empty):
            self._closed |= self._news.get(timeout=seconds)


_LOG = logging.getLogger("stratagem")


@dataclass
class _Member:
    """A worker that belongs to the coordinator.

    Attributes:
        attendant: Sees to its connection.
        late: Whether the others were there before.
        refused: Whether it was there but could not be used.
        known: Whether it was there, or the program knows that it was not.
        joined: Whether it was there.
    """

    attendant: Attendant
    late: bool
    refused: bool = False
    known: bool = False
    joined: bool = False


class Roster:
    """Keeps an attendant for each worker, and logs which come and go.

    Not thread-safe: its methods are called under the lock of its owner, which the events take too.

    Attributes:
        there: The connections, by index of the worker.
    """

    def __init__(self, connect: Connector, events: Events) -> None:
        self.there: dict[int, RemoteWorker] = {}
        self._connect = connect
        self._events = events
        self._members: dict[int, _Member] = {}

    @property
    def indices(self) -> Collection[int]:
        return self._members.keys()

    def add(self, index: int, address: str, delay: float, late: bool) -> None:
        """Let a worker join under a free index, and connect to it after `delay` seconds.

        `late` says that the others were there before.
        """
        connect = partial(self._connect, index, address)
        attendant = Attendant(index, address, connect, self._events)
        self._members[index] = _Member(attendant, late)
        attendant.start(delay)

    def has(self, attendant: Attendant) -> bool:
        member = self._members.get(attendant.index)
        return member is not None and member.attendant is attendant

    def require(self, index: int) -> Attendant:
        """Return the attendant of a worker; raise `InvalidArgumentError` if there is none."""
        if index not in self._members:
            raise InvalidArgumentError(
                f"the coordinator has no worker {index!r}; its workers are "
                f"{sorted(self._members) or 'none'}"
            )
        return self._members[index].attendant

    def dismiss(self, index: int) -> None:
        self._members.pop(index).attendant.close()
        self.there.pop(index, None)
        self._connect.forget(index)
        _LOG.info("%s has left", _name(index), extra=_facts(index, "left"))

    def close(self) -> None:
        for member in self._members.values():
            member.attendant.close()
        self._members.clear()
        self.there.clear()

    # What attendants and connections tell.

    def welcome(self, attendant: Attendant, worker: RemoteWorker) -> bool:
        """Take a connection in; return whether the worker still belongs here."""
        if not self.has(attendant):
            return False
        index = worker.index
        self.there[index] = worker
        member = self._members[index]
        member.refused, member.known, member.joined = False, True, True
        _LOG.info("%s has joined", _name(index), extra=_facts(index, "joined"))
        return True

    def retire(self, worker: RemoteWorker) -> bool:
        """Take note that a worker is about to stop; return whether it is there."""
        index = worker.index
        if self.there.get(index) is not worker:
            return False
        message = "%s is about to stop; others run what waits there"
        _LOG.info(message, _name(index), extra=_facts(index, "retires"))
        return True

    def lose(self, worker: RemoteWorker, why: StratagemError) -> bool:
        """Let a worker be sought again; return whether it was there until now."""
        index = worker.index
        if self.there.get(index) is not worker:
            return False
        del self.there[index]
        self._members[index].attendant.reconnect()
        _LOG.warning("%s", why.message, extra=_facts(index, "lost"))
        return True

    def miss(self, attendant: Attendant, error: StratagemError) -> None:
        """Take note that a worker does not answer; say so of one never there."""
        if not self.has(attendant) or self._members[attendant.index].known:
            return
        self._members[attendant.index].known = True
        facts = _facts(attendant.index, "missing")
        _LOG.warning("%s. Until then functions wait, or others run them", error, extra=facts)

    def refuse(self, attendant: Attendant, error: StratagemError) -> bool:
        """Take note that a worker cannot be used.

        Returns:
            Whether the program is to hear of it: once, unless others can do its work; always while
            there is none.
        """
        if not self.has(attendant):
            return False
        member = self._members[attendant.index]
        if member.joined and isinstance(error, UnimplementedError):
            # While it is away, another program has got its port.
            return False
        first, member.refused = not member.refused, True
        if first and member.late:
            facts = _facts(attendant.index, "refused")
            _LOG.warning("%s cannot join: %s", _name(attendant.index), error, extra=facts)
        return (first and not member.late) or not self.there


def _facts(index: int, event: str) -> dict[str, str]:
    return {"worker": _name(index), "event": event}


def _name(index: int) -> str:
    return f"/job:worker/task:{index}"

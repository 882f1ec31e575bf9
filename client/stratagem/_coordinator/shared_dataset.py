"""Datasets whose batches workers share, and what servers are told of closures that ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, takewhile
from queue import SimpleQueue
from typing import Any, NamedTuple

from stratagem._coordinator.per_worker import PerWorkerDataset, PerWorkerIterator, WorkerValues
from stratagem._core.contexts import on_worker
from stratagem._core.names import UniqueNames
from stratagem._input.read_order import digest_of_indices
from stratagem._input.sharding import NumberedBatches, PassOrder, require_numbered, seed_of
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.coordination import DataPass, draw_batch, end_closures, open_pass
from stratagem._remote_objects.variables import servers_of
from stratagem_proto.errors import AlreadyExistsError, StratagemError
from stratagem_proto.v1.draws_pb2 import EarlierCoordinator
from stratagem_proto.v1.session_pb2 import ClosureIdentity

# The largest number that servers understand.
_ALL = 2**64 - 1


class Ended(NamedTuple):
    """Closures that have ended: all up to the number `through`, but for those `unended`."""

    through: int
    unended: tuple[int, ...]


class OpenClosures:
    """The closures that have not ended.

    Pure. Closures begin in the order of their numbers, some of which may be left out, and end about
    in this order: what is told of them is short.
    """

    def __init__(self) -> None:
        # In the order of their numbers.
        self._unended: dict[int, None] = {}
        self._through = 0

    def begin(self, number: int) -> None:
        self._unended[number] = None

    def end(self, number: int) -> None:
        """Take note that a closure has ended, however it did."""
        del self._unended[number]
        self._through = max(self._through, number)

    @property
    def ended(self) -> Ended:
        """What to tell: once told, a closure of it cannot be taken back."""
        through = self._through
        return Ended(through, (*takewhile(lambda one: one < through, self._unended),))

    @property
    def ended_for_good(self) -> Ended:
        """What to tell once no closure begins any more."""
        return Ended(_ALL, (*self._unended,))


class Inherited:
    """Closures of a coordinator that was lost, with which another one goes on.

    All others of it count as ended.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._unended = set(numbers)

    def end(self, number: int) -> None:
        """Take note that a closure has ended; again does nothing."""
        self._unended.discard(number)

    @property
    def ended(self) -> Ended:
        return Ended(_ALL, (*sorted(self._unended),))


# What ends meanwhile is told at once.
_BATCH_SECONDS = 0.05

_PAUSE_SECONDS = 1.0


class CompletionReporter:
    """Lets servers forget closures, one thread for each server. Thread-safe.

    A server that is away misses nothing: it is told all that has ended when it is back. `space`
    names the coordinator; `numbers` gives numbers to closures, and to what else workers run.
    """

    def __init__(self, servers: ServerGroup, space: bytes, numbers: count[int]) -> None:
        self.space = space
        self._servers = servers
        self._numbers = numbers
        self._open = OpenClosures()
        self._inherited: dict[bytes, Inherited] = {}
        self._changing = threading.Lock()
        self._all_reported = threading.Condition(self._changing)
        # Of this kind because the garbage collector may call `close` anywhere.
        self._news: dict[int, SimpleQueue[bool]] = {
            server: SimpleQueue() for server in servers.called
        }
        # Those that have been told all, or are about to be.
        self._idle = {*servers.called}
        # Those that have not answered that yet.
        self._behind: set[int] = set()
        self._leaving = threading.Event()

    def start(self) -> None:
        for server, news in self._news.items():
            name = f"stratagem-reporter-{server}"
            threading.Thread(target=self._run, args=(server, news), name=name, daemon=True).start()

    def begin(self, inherited: ClosureIdentity | None = None) -> tuple[int, ClosureIdentity]:
        """Return the number of a new closure here, and its identity."""
        with self._changing:
            number = next(self._numbers)
            if inherited is not None:
                return number, inherited
            self._open.begin(number)
        return number, ClosureIdentity(space=self.space, number=number)

    def inherit(self, space: bytes, numbers: Collection[int]) -> set[int]:
        """Take the place of a lost coordinator; return which of its closures are unfinished.

        `numbers` are those that some server takes for unfinished. From then on servers refuse what
        still comes of that coordinator.
        """
        probe = Inherited(numbers).ended
        replies = self._servers.on_all(lambda: end_closures(space, *probe))
        ended = {number for reply in replies.values() for number in reply.ended}
        with self._changing:
            inherited = self._inherited.setdefault(space, Inherited(numbers))
            for number in ended:
                inherited.end(number)
            self._report_soon()
        return {*numbers} - ended

    def end(self, identity: ClosureIdentity) -> None:
        """Take note that a closure has ended; do not wait."""
        with self._changing:
            own = identity.space == self.space
            unended = self._open if own else self._inherited[identity.space]
            unended.end(identity.number)
            self._report_soon()

    def leave(self, seconds: float) -> None:
        """Tell servers that no closure begins any more, and wait at most so many seconds.

        They then need not remember this coordinator for as long as its program lives.
        """
        with self._changing:
            if self._open.ended.through:
                self._leaving.set()
                self._report_soon()
            self._all_reported.wait_for(lambda: not self._behind, seconds)

    def _report_soon(self) -> None:
        if not self._idle:
            return  # all will be told this, too
        self._behind.update(self._news)
        waiting, self._idle = self._idle, set()
        for server in waiting:
            self._news[server].put(True)

    def close(self) -> None:
        """Let the threads end. May be called anywhere, and again."""
        for news in self._news.values():
            news.put(False)

    def _run(self, server: int, news: SimpleQueue[bool]) -> None:
        while news.get() and not self._servers.closed:
            self._leaving.wait(_BATCH_SECONDS)
            try:
                for space, ended in self._everything_for(server).items():
                    request = end_closures(space, *ended)
                    self._servers.call(server, request)
            except StratagemError:
                time.sleep(_PAUSE_SECONDS)
                with self._changing:
                    was_idle = server in self._idle
                    self._idle.discard(server)
                if was_idle:
                    news.put(True)
                continue
            with self._changing:
                if server in self._idle:
                    self._behind.discard(server)
                    self._all_reported.notify_all()

    def _everything_for(self, server: int) -> Mapping[bytes, Ended]:
        with self._changing:
            self._idle.add(server)
            all_ended = {name: one.ended for name, one in self._inherited.items()}
            leaves = self._leaving.is_set()
            own = self._open.ended_for_good if leaves else self._open.ended
            return {self.space: own, **all_ended}


_LOG = logging.getLogger("stratagem")


@dataclass(frozen=True)
class OpenedPass:
    """A pass that functions are to read.

    Attributes:
        data: Which.
        remaining: How many batches they have to draw.
        inherited: Functions of a coordinator that was lost which have drawn from it and not ended.
            They are to run again.
    """

    data: DataPass
    remaining: int
    inherited: Sequence[ClosureIdentity]


@dataclass(frozen=True)
class DataAccount:
    """The account of some data, by its name, as a coordinator uses it."""

    strategy: ParameterServerStrategy
    reporter: CompletionReporter
    name: str

    def open(self, num_batches: int, seed: int) -> OpenedPass:
        """Begin a pass, or go on with the last one if its coordinator was lost.

        `seed` shuffles all passes, if this is the first one.

        Raises:
            FailedPreconditionError: The data had another number of batches.
        """
        request = open_pass(self.name, num_batches, seed, self.reporter.space)
        # The first server keeps the accounts of all data.
        servers = servers_of(self.strategy)
        opened = servers.call(servers.used[0], request)
        unfinished = [one for each in opened.earlier for one in self._unfinished(each)]
        if opened.earlier:
            _LOG.warning(
                "continues pass %d of %r, of which %d of %d batches have been handed out "
                "before; programs that read it until now can read nothing more of it",
                opened.number,
                self.name,
                opened.drawn,
                num_batches,
            )
        return OpenedPass(
            DataPass(self.name, opened.number, opened.seed),
            num_batches - opened.drawn + sum(batches for _, batches in unfinished),
            [identity for identity, batches in unfinished if batches],
        )

    def _unfinished(self, earlier: EarlierCoordinator) -> Iterator[tuple[ClosureIdentity, int]]:
        """Yield the unfinished functions, with how many batches they have drawn."""
        space, batches = earlier.space, {}
        for one in earlier.unfinished:
            batches[one.number] = one.batches
        for number in sorted(self.reporter.inherit(space, batches.keys())):
            yield ClosureIdentity(space=space, number=number), batches[number]


class SharedReader(Iterator[Any]):
    """One pass over data, of which the function that runs reads the next batch."""

    def __init__(self, strategy: ParameterServerStrategy, dataset: Any, opened: DataPass) -> None:
        self._servers = servers_of(strategy)
        self._batches = NumberedBatches(dataset)
        self._pass = opened

    def __next__(self) -> Any:
        """Draw the next batch and read it.

        Raises:
            FailedPreconditionError: The data had another number of batches, or are in another order
                on another worker, or another coordinator goes on with the pass.
        """
        order, digest = self._order
        request = draw_batch(self._pass, len(self._batches), digest)
        # The first server keeps the accounts of all data.
        number = self._servers.call(self._servers.used[0], request)
        if number is None:
            raise StopIteration
        return self._batches.read(order[number])

    @cached_property
    def _order(self) -> tuple[PassOrder, int]:
        order = self._batches.order(self._pass.seed, self._pass.number)
        return order, 0 if isinstance(order, range) else digest_of_indices(order)


class SharedIterator(PerWorkerIterator):
    """One pass over a dataset of which workers share the batches.

    Passed to scheduled functions, `next` gives them one batch after the other, each once. When
    there is none left, a function that calls `next` fails with `OutOfRangeError`.

    Attributes:
        pass_number: Which pass over the data this is, from 0.
        remaining: How many batches functions have to draw yet, as of the beginning: all, unless a
            program that was lost has begun the pass.

    Spec: COO-13, COO-15.
    """

    def __init__(
        self, dataset: SharedDataset, build: Callable[[], Any], opened: OpenedPass
    ) -> None:
        super().__init__(dataset, build)
        self.pass_number: int = opened.data.number
        self.remaining: int = opened.remaining
        self._inherited = deque(opened.inherited)


class SharedDataset(PerWorkerDataset):
    """A dataset of which workers share the batches.

    `len` is the number of batches in a pass, and `iter` begins one: as many functions as there are
    batches read all of it, if each calls `next` once.

    A program that is started again in place of one that was lost goes on with the last pass by its
    first `iter`, unless that pass is over.

    Args:
        worker_values: What workers keep.
        build: Makes the data, here and on each worker.
        account: Of what is read.

    Raises:
        InvalidArgumentError: Batches of the data cannot be read by their numbers.

    Spec: COO-12 to COO-15.
    """

    def __init__(
        self, worker_values: WorkerValues, build: Callable[[], Any], account: DataAccount
    ) -> None:
        super().__init__(worker_values, build)
        with on_worker(0):
            dataset = build()
        require_numbered(dataset)
        self._account = account
        self._num_batches = len(dataset)
        self._seed = seed_of(dataset)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> SharedIterator:
        """Begin a pass, or go on with that of a program that was lost."""
        opened = self._account.open(len(self), self._seed)
        build = partial(SharedReader, self._account.strategy, self, opened.data)
        return SharedIterator(self, build, opened)


class SharedDatasets:
    """The shared datasets of one coordinator, by name."""

    def __init__(
        self,
        worker_values: WorkerValues,
        strategy: ParameterServerStrategy,
        reporter: CompletionReporter,
    ) -> None:
        self._worker_values = worker_values
        self._strategy = strategy
        self._reporter = reporter
        self._names = UniqueNames()

    def create(self, build: Callable[[], Any], name: str | None) -> SharedDataset:
        """Return the dataset that `build` makes on each worker; without a name, choose a free one.

        Raises:
            AlreadyExistsError: There was one of this name.
        """
        chosen = self._names.choose("dataset" if name is None else name)
        if name not in (None, chosen):
            raise AlreadyExistsError(
                f"this coordinator has made a dataset {name!r} before; take another "
                "iterator of that one, or give other data another name"
            )
        account = DataAccount(self._strategy, self._reporter, chosen)
        dataset = SharedDataset(self._worker_values, build, account)
        # Servers keep its account longer than the program keeps the dataset.
        self._names.record(chosen, self)
        return dataset


def inherited_identity(remote_objects: Iterable[object]) -> ClosureIdentity | None:
    """Return the identity of an unfinished function that a new one goes on with.

    It has drawn from an iterator among `remote_objects`, which are what the new one uses of the
    workers', when the program was lost that had scheduled it. Each is returned once; None if there
    is none left.
    """
    iterators = [one for one in remote_objects if isinstance(one, SharedIterator)]
    for iterator in iterators:
        with suppress(IndexError):
            inherited = iterator._inherited.popleft()
            for other in iterators:
                with suppress(ValueError):
                    other._inherited.remove(inherited)
            return inherited
    return None

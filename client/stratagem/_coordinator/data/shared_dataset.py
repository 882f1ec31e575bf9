"""Datasets of which workers share the batches, each to one function, and their account."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from stratagem._coordinator.completion_reporter import CompletionReporter
from stratagem._coordinator.data.per_worker import PerWorkerDataset, PerWorkerIterator
from stratagem._coordinator.data.worker_values import WorkerValues
from stratagem._core.contexts import on_worker
from stratagem._core.names import UniqueNames
from stratagem._input.read_order import digest_of_indices
from stratagem._input.sharding import NumberedBatches, PassOrder, require_numbered, seed_of
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.coordination import DataPass, draw_batch, open_pass
from stratagem_proto.errors import AlreadyExistsError
from stratagem_proto.v1.draws_pb2 import EarlierCoordinator, OpenPassResponse
from stratagem_proto.v1.session_pb2 import ClosureIdentity

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
        keeper = BatchKeeper.of(self.strategy)
        opened = keeper.servers.call(keeper.server, request)
        unfinished = [one for each in opened.earlier for one in self._taken_over(each)]
        if opened.earlier:
            self._report(opened, num_batches)
        return OpenedPass(
            DataPass(self.name, opened.number, opened.seed),
            num_batches - opened.drawn + sum(batches for _, batches in unfinished),
            [identity for identity, batches in unfinished if batches],
        )

    def _taken_over(self, earlier: EarlierCoordinator) -> Iterator[tuple[ClosureIdentity, int]]:
        """Yield the unfinished functions, with how many batches they have drawn."""
        space, batches = earlier.space, {}
        for one in earlier.unfinished:
            batches[one.number] = one.batches
        for number in sorted(self.reporter.inherit(space, batches.keys())):
            yield ClosureIdentity(space=space, number=number), batches[number]

    def _report(self, opened: OpenPassResponse, num_batches: int) -> None:
        _LOG.warning(
            "continues pass %d of %r, of which %d of %d batches have been handed out "
            "before; programs that read it until now can read nothing more of it",
            opened.number,
            self.name,
            opened.drawn,
            num_batches,
        )


@dataclass(frozen=True)
class BatchKeeper:
    """The server that keeps the accounts of all data."""

    servers: ServerGroup
    server: int

    @classmethod
    def of(cls, strategy: ParameterServerStrategy) -> BatchKeeper:
        """Return that of a strategy, here or on a worker."""
        extended = strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        servers = extended._store.servers
        return cls(servers, servers.used[0])

    def draw(self, data: DataPass, num_batches: int, order: int) -> int | None:
        """Return the number of the batch that the running function is to read; None at the end.

        Raises:
            FailedPreconditionError: The data had another number of batches, or are in another order
                on another worker, or another coordinator goes on with the pass.
        """
        return self.servers.call(self.server, draw_batch(data, num_batches, order))


class SharedReader(Iterator[Any]):
    """One pass over data, of which the function that runs reads the next batch."""

    def __init__(self, strategy: ParameterServerStrategy, dataset: Any, opened: DataPass) -> None:
        self._keeper = BatchKeeper.of(strategy)
        self._batches = NumberedBatches(dataset)
        self._pass = opened

    def __next__(self) -> Any:
        order, digest = self._order
        number = self._keeper.draw(self._pass, len(self._batches), digest)
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
    """The shared datasets of one coordinator."""

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

"""The public face of functions that run on worker servers."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Literal, overload

from stratagem._coordinator.closure import Closure, RemoteValue, Result, fetched
from stratagem._coordinator.dispatch import CoordinatorSettings, Dispatch
from stratagem._coordinator.monitor import Patience, Recurring, ResolverWatch, Watchdog, workers_of
from stratagem._coordinator.per_worker import (
    PerWorkerDataset,
    PerWorkerVariable,
    WorkerValues,
    build_of,
)
from stratagem._coordinator.shared_dataset import (
    CompletionReporter,
    SharedDataset,
    SharedDatasets,
    inherited_identity,
)
from stratagem._coordinator.workers import (
    Connector,
    require_suited,
    worker_at,
)
from stratagem._core.contexts import cross_replica, current_replica_id
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.transport import Traffic, TrafficMeter
from stratagem._remote_objects.modules import COORDINATOR_KINDS
from stratagem._remote_objects.variables import CoordinatorStub, hosting_of, servers_of
from stratagem._shipping.call import FunctionCall, bound, name_of
from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem._shipping.outcome_forms import form_for
from stratagem._worker_client.wire import Batchers
from stratagem_proto.errors import CancelledError, InvalidArgumentError
from stratagem_proto.protocol import SESSION_ID_BYTES


class OwnParameters:
    """Brings the program's parameters up to date once all functions have ended.

    The program can then evaluate its modules in plain code, as it could if it had trained them
    itself. While functions run, values would be old at once. `ended` returns how many functions
    have ended, or None while some have not.
    """

    def __init__(self, strategy: ParameterServerStrategy, ended: Callable[[], int | None]) -> None:
        self._strategy = strategy
        self._ended = ended
        self._seen = 0

    def refresh(self) -> None:
        """Read them, if functions have ended since the last time and none is left.

        In a replica they stay what it works with, and so they do once the strategy is closed. What
        the program has a value of is seen by later functions, whether others are left or not.
        """
        if current_replica_id() is not None:
            return
        ended = self._ended()
        if ended == self._seen:
            return
        hosting = hosting_of(self._strategy)
        if not len(hosting.parameters):
            return
        hosting.seen += 1
        if ended is None:
            return
        with suppress(CancelledError), cross_replica(self._strategy):
            hosting.refresh_parameters()
        self._seen = ended


_FAREWELL_SECONDS = 1.0


class ClusterCoordinator:
    """Lets the workers of a cluster run functions that one program schedules.

    The program makes variables, modules and optimizers in the scope of its strategy; the workers
    are servers that wait for functions, see `stratagem worker`. A function runs as a program of its
    own would, with the same strategy, on one worker, whichever has time::

        strategy = ParameterServerStrategy(resolver)
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            model = Model()
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
        batches = iter(coordinator.create_per_worker_dataset(make_dataset))

        def step(batches):
            return strategy.run(replica_step, args=(next(batches),))

        for _ in range(steps):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()

    What a worker was running when it was lost runs on another one, and changes nothing twice, as
    long as a function writes the same variables in the same order whenever it runs. An error that a
    function raises is raised once, by the next `schedule`, `join` or `done`, which cancels all
    other functions first; afterwards the coordinator can be used again.

    Workers may join and leave at any time: see `add_worker`, `remove_worker` and
    `resolver_seconds`. A worker that is lost is sought until it is back; who comes and goes is told
    to the logger "stratagem".

    There is one coordinator for each strategy: constructing it again returns the first.

    Args:
        strategy: Of a cluster with parameter servers and workers, whose updates are asynchronous.
            Its task should be the chief.
        queue_size: How many functions may wait for a worker before `schedule` waits.
        start_delay: Seconds by which each worker starts after the one before it.
        longest_start_delay: The longest start delay of a worker, in seconds. With 0, the default,
            `start_delay` has no effect.
        watchdog_seconds: For how long no function may end, while some are scheduled, until a
            warning with the state of all workers and threads is logged.
        resolver_seconds: Seconds between looks at the strategy's `cluster_resolver`: workers that
            it knows since then join, and those that it knows no more leave, as by `add_worker` and
            `remove_worker`. By default it is not looked at again. What it says of other jobs does
            not count.
        max_worker_losses: After so many workers were lost without taking leave while they had a
            function, it fails by an `AbortedError` instead of running again. None lets functions
            run again whatever becomes of workers.
        trust_workers: Whether results and exceptions are pickled. Without it functions return
            tensors, arrays, numbers, strings, bytes, None, and tuples, lists, dicts and sets of
            these, and of exceptions those of Python and of Stratagem come as such; others as a
            `WorkerFunctionError`. With it, functions return and raise what can be pickled, and
            whoever takes over a worker has this program too.

    Raises:
        InvalidArgumentError: `strategy` is of another class, has no cluster or no workers, its task
            is another, or its workers wait for each other.

    Spec: COO-1 to COO-19, ERR-1 to ERR-10, FLT-1 to FLT-15.
    """

    strategy: ParameterServerStrategy
    """The strategy. Spec: COO-3."""

    def __new__(cls, strategy: ParameterServerStrategy, **settings: Any) -> ClusterCoordinator:
        require_suited(strategy)
        if strategy._coordinator is None:
            strategy._coordinator = super().__new__(cls)
        assert isinstance(strategy._coordinator, ClusterCoordinator)
        return strategy._coordinator

    def __init__(  # noqa: PLR0913 - independent settings, all by name
        self,
        strategy: ParameterServerStrategy,
        *,
        queue_size: int = 262_144,
        start_delay: float = 0.0,
        longest_start_delay: float = 0.0,
        watchdog_seconds: float | None = None,
        resolver_seconds: float | None = None,
        max_worker_losses: int | None = 3,
        trust_workers: bool = False,
    ) -> None:
        if hasattr(self, "strategy"):
            return
        settings = CoordinatorSettings(
            queue_size=queue_size,
            start_delay=start_delay,
            longest_start_delay=longest_start_delay,
            watchdog_seconds=watchdog_seconds,
            resolver_seconds=resolver_seconds,
            max_worker_losses=max_worker_losses,
        )
        self.strategy = strategy
        numbers = count(1)
        outcomes = form_for(trust_workers)
        self._worker_values = WorkerValues(ClosurePickler(strategy, COORDINATOR_KINDS), outcomes)
        space = secrets.token_bytes(SESSION_ID_BYTES)
        self._reporter = CompletionReporter(servers_of(strategy), space, numbers)
        self._shared = SharedDatasets(self._worker_values, strategy, self._reporter)
        self._meter = TrafficMeter()
        self._batchers = Batchers()
        connect = Connector(strategy, numbers, self._meter, self._batchers, outcomes)
        ended = self._reporter.end
        self._dispatch = Dispatch(connect, settings, ended, self._batchers)
        self._parameters = OwnParameters(strategy, self._dispatch.ended_in_all)
        make = partial(PerWorkerVariable, self._worker_values, self._dispatch.ask_all)
        end = partial(_end, self._reporter, self._dispatch)
        extended = strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        extended.coordinate(make, end, self._dispatch.done)
        weakref.finalize(self, self._dispatch.close)
        self._start(settings)

    def __reduce__(self) -> tuple[type[CoordinatorStub], tuple[()]]:
        """Travel as a stub: methods take the coordinator along, but cannot use it."""
        return CoordinatorStub, ()

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> RemoteValue:
        """Let some worker run a function, and return at once.

        The function and its arguments travel as they are now. What was made in the strategy's scope
        is the worker's own there; a `RemoteValue` becomes the value, for which the function waits;
        a per-worker value becomes the worker's.

        The function runs in the strategy's scope on the worker, across replicas, and
        `get_strategy()` is the strategy there. What makes a dataset runs in no scope.

        Args:
            fn: The function.
            args: Its positional arguments.
            kwargs: Its arguments by name.
            timeout: Longest wait in seconds for room in the queue; any by default.

        Returns:
            What the function will have returned.

        Raises:
            InvalidTypeError: `fn` cannot be called, not with these arguments, or something that it
                uses cannot be sent.
            FailedPreconditionError: It uses a lazy parameter that has no shape yet, or a variable
                that a server has lost to the end of an earlier run.
            DeadlineExceededError: It found no room in that time, and does not run.
            Exception: What an earlier function raised. `fn` is then cancelled too.

        Spec: COO-4 to COO-8, ERR-4, ERR-5.
        """
        patience = Patience("schedule", timeout)
        call = FunctionCall(fn, *bound(fn, args, kwargs), self.strategy)
        parcel = self._worker_values.closure_pickler.dump(call)
        self._release()
        value: RemoteValue

        def begin() -> Closure:
            nonlocal value
            left = inherited_identity(parcel.remote_objects.values())
            number, identity = self._reporter.begin(left)
            result = Result(self._worker_values, number, self._dispatch.await_end)
            value = RemoteValue(result, self._parameters.refresh)
            return Closure(number, identity, name_of(fn), parcel, result)

        self._dispatch.schedule(begin, patience)
        return value

    def join(self, *, timeout: float | None = None) -> None:
        """Wait until all functions have ended.

        No thread can schedule another one meanwhile. Afterwards this program's own parameters are
        what functions have trained.

        Args:
            timeout: Longest wait in seconds; by default as long as it takes.

        Raises:
            DeadlineExceededError: Some, which it names, have not ended; they go on.
            UnavailableError: All have ended, but the parameters could not be read.
            Exception: What a function raised, the first one since the last error was raised. All
                others have ended or are cancelled.

        Spec: COO-9, ERR-4.
        """
        self._dispatch.join(Patience("join", timeout))
        self._release()
        self._parameters.refresh()

    def done(self) -> bool:
        """Return whether all functions have ended; if so, parameters are as of `join`.

        Raises:
            Exception: As `join`.

        Spec: COO-10, ERR-4.
        """
        if done := self._dispatch.done():
            self._parameters.refresh()
        return done

    def fetch(self, val: Any) -> Any:
        """Wait for every `RemoteValue` of a nest, and put what it `fetch`es in place.

        Args:
            val: The nest; other leaves stay as they are.

        Raises:
            Exception: What one of the functions raised.

        Spec: COO-11.
        """
        return fetched(val)

    def traffic(self) -> Traffic:
        """Return how many bytes this program has exchanged with workers so far.

        What workers exchange among themselves, such as large arguments, is not among them; nor is
        what parameter servers send and get.
        """
        return self._meter.total

    @overload
    def create_per_worker_dataset(
        self, dataset_fn: Any, exactly_once: Literal[True], name: str | None = None
    ) -> SharedDataset: ...

    @overload
    def create_per_worker_dataset(
        self, dataset_fn: Any, exactly_once: bool = False, name: str | None = None
    ) -> PerWorkerDataset: ...

    def create_per_worker_dataset(
        self, dataset_fn: Any, exactly_once: bool = False, name: str | None = None
    ) -> PerWorkerDataset:
        """Let each worker have a dataset.

        Each worker has all of the data: nothing is divided among workers, unless `dataset_fn` does
        so by `experimental_get_current_worker_index`. A worker makes the dataset when a function
        first needs it, and anew after it was lost.

        With `exactly_once` the workers share each pass over the data: what `iter` returns hands
        each batch to one function, whichever draws first. A function that runs again, because its
        worker was lost, gets the batches that it got before. A parameter server keeps account of
        that, and checkpoints have it.

        Args:
            dataset_fn: A function without arguments that returns what
                `experimental_distribute_dataset` takes, or a distributed dataset. Or a dataset
                itself, of which each worker gets a copy.
            exactly_once: Whether workers share the batches. The dataset then is a DataLoader over a
                map-style dataset, such a dataset, or a list of batches. Its loader draws the
                samples and makes batches of them, in the functions' own time: `num_workers` means
                nothing. Where it has no generator, it shuffles by a seed drawn from that of
                PyTorch.
            name: By which a program that is started again finds out how far the data were read; by
                default "dataset", "dataset_1" and so on. Only with `exactly_once`.

        Returns:
            What to call `iter` on. The iterator is passed to scheduled functions. With
            `exactly_once` it is a `SharedDataset`.

        Raises:
            InvalidArgumentError: It is neither, it cannot be read exactly once, or there is a name
                without `exactly_once`.
            AlreadyExistsError: This coordinator has a dataset of that name.
            InvalidTypeError: It cannot be sent to workers.

        Spec: COO-12 to COO-14.
        """
        build = build_of(dataset_fn)
        if exactly_once:
            return self._shared.create(build, name)
        if name is not None:
            raise InvalidArgumentError(
                f"the name {name!r} is for datasets of which workers share the "
                "batches; pass exactly_once=True, or no name"
            )
        return PerWorkerDataset(self._worker_values, build)

    @property
    def workers(self) -> list[int]:
        """The indices of the workers that are there now."""
        return self._dispatch.workers()

    def add_worker(self, address: str) -> int:
        """Let a worker server join while functions run.

        It takes part under the index that it was started with, which no other worker may have:
        `stratagem worker --task 5`. Indices may have gaps, and those of workers that have left may
        be used again.

        Args:
            address: Its "host:port".

        Returns:
            The index.

        Raises:
            AlreadyExistsError: There is a worker of that index.
            UnavailableError: The worker cannot be reached.
            UnauthenticatedError: It has another cluster token.
            FailedPreconditionError: It runs other versions of Python, PyTorch, cloudpickle or
                Stratagem, or is no worker.
        """
        index = worker_at(address, self.strategy)
        self._dispatch.add(index, address, late=True)
        return index

    def remove_worker(self, index: int, *, timeout: float | None = None) -> None:
        """Let a worker leave: it gets nothing more to run.

        Waits until what it is running has ended. What waits there goes to others, or for one if
        there is none. The worker server itself stays, and may be added again.

        Args:
            index: Its index.
            timeout: Longest wait in seconds; by default as long as it takes.

        Raises:
            InvalidArgumentError: There is no such worker.
            DeadlineExceededError: What it runs, which is named, has not ended in that time. The
                worker leaves once it has.
        """
        patience = Patience("remove_worker", timeout)
        self._dispatch.remove(index)
        self._dispatch.await_removal(index, patience)

    def _start(self, settings: CoordinatorSettings) -> None:
        self._attach(self._reporter)
        resolver, dispatch = self.strategy.cluster_resolver, self._dispatch
        workers = workers_of(resolver)
        for index, address in workers.items():
            dispatch.add(index, address, delay=settings.delay_of(index))
        if settings.resolver_seconds is not None:
            watch = ResolverWatch(resolver, dispatch, workers)
            self._attach(Recurring("stratagem-resolver", settings.resolver_seconds, watch.look))
        if settings.watchdog_seconds is not None:
            seconds = settings.watchdog_seconds
            watchdog = Watchdog(seconds, dispatch.ended, dispatch.state)
            self._attach(Recurring("stratagem-watchdog", seconds, watchdog.look))

    def _attach(self, threads: CompletionReporter | Recurring) -> None:
        threads.start()
        weakref.finalize(self, threads.close)

    def _release(self) -> None:
        handles = self._worker_values.gone()
        if handles:
            self._dispatch.release(handles)


def _end(reporter: CompletionReporter, dispatch: Dispatch) -> None:
    # Otherwise the program, run again, would go on with functions that have ended.
    reporter.leave(_FAREWELL_SECONDS)
    dispatch.close()

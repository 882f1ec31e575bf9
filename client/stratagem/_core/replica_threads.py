"""Running a function once per replica.

Several replicas have a thread each, but only one of them runs at a time: the first until it ends or
reaches a merge call, then the second, and so on. The calling thread passes the turn and runs the
merge functions. Spec: RUN-1.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts import ThreadContext, cross_replica, run_options
from stratagem._core.distributed_values import regroup, select_replica
from stratagem._core.replica_context import MergeCall, ReplicaContext
from stratagem._core.variable_creation import Creator, NextCreator, creator_scope, creators
from stratagem._core.variables import Variable
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class _Autocast:
    device_type: str
    dtype: torch.dtype
    enabled: bool


def _split_kernels(threads: int) -> None:
    """Let kernels that this thread calls split their work among so many threads.

    A thread keeps the count that the program had at the thread's first kernel, and batch
    normalization rounds differently with another count. The same step would differ in its last bits
    by which thread of the pool ran it. The count stays afterwards, since to set it back would set
    it back for the whole program.
    """
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class TorchState:
    """Gradient recording, inference mode, autocast and intra-op threads of one thread.

    The default dtype needs no carrying: torch keeps it per process.
    """

    grad_enabled: bool
    inference_mode: bool
    autocasts: tuple[_Autocast, ...]
    autocast_cache: bool
    intra_op_threads: int

    @classmethod
    def capture(cls) -> TorchState:
        """Return the state of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(
                _Autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
                for kind in _DEVICE_TYPES
            ),
            torch.is_autocast_cache_enabled(),
            torch.get_num_threads(),
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Scope in which this thread has that state."""
        _split_kernels(self.intra_op_threads)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for autocast in self.autocasts:
                # A disabled autocast for an absent device type would still warn.
                if autocast.enabled != torch.is_autocast_enabled(autocast.device_type):
                    stack.enter_context(
                        torch.autocast(
                            autocast.device_type,
                            dtype=autocast.dtype,
                            enabled=autocast.enabled,
                            cache_enabled=self.autocast_cache,
                        )
                    )
            yield


@dataclass(frozen=True)
class Finished:
    """The replica's function has returned."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """The replica's function has raised."""

    error: BaseException


@dataclass(frozen=True)
class Merging:
    """The replica waits in a merge call."""

    merge_fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    torch_state: TorchState


Report = Finished | Failed | Merging


class _Stopped(BaseException):
    """Ends a replica that waits in a merge call, because another one failed."""


class _Pool:
    """Threads for replicas, reused because torch keeps state for each thread."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        # A waiting replica holds its thread, so a cap would be a deadlock.
        self.executor = ThreadPoolExecutor(1 << 20, "stratagem-replica")


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.renew)


class ReplicaThread:
    """One replica with its thread, told when to go on by the calling thread.

    Args:
        surroundings: Makes a thread run the replica, given its merge call.
        call: The replica function with its arguments.
    """

    def __init__(
        self,
        surroundings: Callable[[MergeCall], AbstractContextManager[None]],
        call: Callable[[], Any],
    ) -> None:
        self._surroundings = surroundings
        self._call = call
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._started = self._ended = False

    def turn(self, answer: Any) -> Report:
        """Let the replica run until it ends or reaches a merge call."""
        self.resume(answer)
        return self.report()

    def resume(self, answer: Any) -> None:
        """Start the replica, or let its merge call return `answer`."""
        if self._started:
            self._answers.put(answer)
        else:
            self._started = True
            _pool.executor.submit(copy_context().run, self._run)

    def report(self) -> Report:
        """Wait until the replica has ended or reached a merge call."""
        report = self._reports.get()
        self._ended = not isinstance(report, Merging)
        return report

    def stop(self) -> None:
        """End the replica at its next merge call, and wait for that."""
        while self._started and not self._ended:
            self._answers.put(_Stopped())
            self.report()

    def _merge(
        self, merge_fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        _require_untraced()
        self._reports.put(Merging(merge_fn, args, kwargs, TorchState.capture()))
        answer = self._answers.get()
        if isinstance(answer, _Stopped):
            raise answer
        return answer

    def _run(self) -> None:
        try:
            with self._surroundings(self._merge):
                result = self._call()
        except BaseException as error:
            self._reports.put(Failed(error))
        else:
            self._reports.put(Finished(result))


def _require_untraced() -> None:
    """Check that no graph is being recorded, which would miss the other replicas.

    Functions by torch.compile are cut in two at a merge call, so they need no check.

    Raises:
        ContextError: torch.jit.trace or torch.export records one. Spec: RUN-4.
    """
    compiler = torch.compiler
    exporting = compiler.is_compiling() and not compiler.is_dynamo_compiling()
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if exporting or tracing:
        raise ContextError(
            "`merge_call` called while defining a new graph or a tf.function: the "
            "replicas meet only outside of what torch.jit.trace and torch.export "
            "record; trace a part of the replica function without merge_call, "
            "all_reduce or assign, or use torch.compile"
        )


_NUMBER_SUFFIX = re.compile(r"_\d+(?=/|$)")


def canonical_name(name: str | None) -> str:
    """Return `name` without the numbers that make names unique. Spec: VAR-10."""
    return _NUMBER_SUFFIX.sub("", name) if name else "Variable"


class SharedCreation:
    """Lets the first replica create variables and the others find them.

    The k-th variable of one canonical name is the same on all replicas. Where replicas overlap, the
    others wait for the first one as long as it runs.
    Spec: VAR-10 to VAR-12.
    """

    def __init__(self) -> None:
        self._created: defaultdict[str, list[Variable]] = defaultdict(list)
        self._changed = threading.Condition()
        self._first_runs = True

    def first_runs(self, runs: bool) -> None:
        """Note whether the first replica runs, or waits in a merge call or has ended.

        Args:
            runs: Whether it does.
        """
        with self._changed:
            self._first_runs = runs
            self._changed.notify_all()

    def creator(self, replica: int) -> Creator:
        """Return the creator for the thread of `replica`."""
        if replica == 0:
            return self._create
        return partial(self._find, replica, defaultdict(int))

    def _create(self, next_creator: NextCreator, **kwargs: object) -> Variable:
        variable = next_creator(**kwargs)
        with self._changed:
            self._created[_name_in(kwargs)].append(variable)
            self._changed.notify_all()
        return variable

    def _find(
        self,
        replica: int,
        found: defaultdict[str, int],
        next_creator: NextCreator,
        **kwargs: object,
    ) -> Variable:
        name = _name_in(kwargs)
        variables = self._created[name]
        with self._changed:
            self._changed.wait_for(lambda: found[name] < len(variables) or not self._first_runs)
        if found[name] >= len(variables):
            raise ContextError(
                f"Tried to create variable {kwargs.get('name') or 'Variable'!r} with "
                f"mismatching name on device of replica {replica}: the first replica "
                f"created {len(variables)} of the name {name!r}; create the same "
                "variables, under the same names, on every replica"
            )
        found[name] += 1
        return variables[found[name] - 1]


def _name_in(kwargs: dict[str, object]) -> str:
    name = kwargs.get("name")
    return canonical_name(name if isinstance(name, str) else None)


def run_replicas(
    strategy: AnyStrategy,
    devices: Sequence[str],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Call `fn` once per device and merge what the calls return.

    Distributed values among the arguments are replaced by each replica's component. A single
    replica runs in the calling thread.

    Args:
        strategy: The strategy, current in this thread, in cross-replica context.
        devices: The device of each replica of this process.
        fn: The replica function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Raises:
        ContextError: The replicas make different numbers of merge calls.
        Exception: What a replica or a merge function raises, unchanged.

    Spec: RUN-1 to RUN-7, MRG-1 to MRG-6, REG-1 to REG-8.
    """
    if len(devices) > 1:
        return _Rounds(strategy, devices, fn, args, kwargs).run()
    replica = ReplicaContext(strategy, strategy._extended._first_replica_id)
    with ThreadContext(strategy, replica, component=0), device_names.device(devices[0]):
        return _bound(0, 1, fn, args, kwargs)()


def _bound(
    index: int, count: int, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Return `fn` with what the replica `index` of `count` gets as arguments."""
    mine = {key: select_replica(index, value, count) for key, value in kwargs.items()}
    return partial(fn, *[select_replica(index, value, count) for value in args], **mine)


class _Rounds:
    """The replicas of one run, from one merge call to the next."""

    def __init__(
        self,
        strategy: AnyStrategy,
        devices: Sequence[str],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        options = run_options()
        self._concurrent = options is not None and options.run_concurrently
        self._strategy = strategy
        self._shared = SharedCreation()
        surroundings = _Surroundings(strategy, devices, self._shared)
        self._replicas = [
            ReplicaThread(
                partial(surroundings.entered, index), _bound(index, len(devices), fn, args, kwargs)
            )
            for index in range(len(devices))
        ]

    def run(self) -> Any:
        """Run all replicas to their ends and merge their results."""
        answers: Sequence[Any] = [None] * len(self._replicas)
        try:
            while True:
                reports = self._round(answers)
                ends = [r.result for r in reports if isinstance(r, Finished)]
                if len(ends) == len(reports):
                    return regroup(ends)
                answers = self._merged(reports)
        finally:
            for replica in self._replicas:
                replica.stop()

    def _round(self, answers: Sequence[Any]) -> list[Report]:
        self._shared.first_runs(True)
        turns = zip(self._replicas, answers, strict=True)
        if self._concurrent:
            for replica, answer in turns:
                replica.resume(answer)
            coming = (replica.report() for replica in self._replicas)
        else:
            coming = (replica.turn(answer) for replica, answer in turns)
        reports = []
        for report in coming:
            self._shared.first_runs(False)
            reports.append(_unfailed(report))
        return reports

    def _merged(self, reports: Sequence[Report]) -> list[Any]:
        """Run the merge function of the first replica; return each one's answer."""
        calls = [report for report in reports if isinstance(report, Merging)]
        if len(calls) < len(reports):
            raise self._unequal_merges(reports)
        first = calls[0]
        args = regroup([tuple(call.args) for call in calls])
        kwargs = regroup([call.kwargs for call in calls])
        with cross_replica(self._strategy), first.torch_state.applied():
            result = first.merge_fn(self._strategy, *args, **kwargs)
        return [select_replica(index, result) for index in range(len(calls))]

    def _unequal_merges(self, reports: Sequence[Report]) -> ContextError:
        waiting = [i for i, r in enumerate(reports) if isinstance(r, Merging)]
        return ContextError(
            "The replicas made a different number of `merge_call` calls: replicas "
            f"{waiting} of {len(reports)} wait in one and the others have returned; "
            "whether to call it (or all_reduce, or assign) must not depend on the "
            "replica"
        )


def _unfailed(report: Report) -> Report:
    if isinstance(report, Failed):
        raise report.error
    return report


class _Surroundings:
    """What the threads of all replicas take over from the calling thread.

    Spec: RUN-3.
    """

    def __init__(
        self, strategy: AnyStrategy, devices: Sequence[str], shared: SharedCreation
    ) -> None:
        self._strategy = strategy
        self._devices = devices
        self._creators = creators()
        self._torch_state = TorchState.capture()
        self._shared = shared

    @contextmanager
    def entered(self, index: int, merge: MergeCall) -> Iterator[None]:
        """Make this thread run the replica `index`."""
        strategy = self._strategy
        number = strategy.extended._first_replica_id + index
        chain = (*self._creators, self._shared.creator(index))
        with (
            ReplicaContext(strategy, number, merge),
            device_names.device(self._devices[index]),
            creator_scope(*chain),
            self._torch_state.applied(),
        ):
            yield

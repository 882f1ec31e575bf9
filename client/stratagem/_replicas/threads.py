"""Running a function once per replica.

Several replicas have a thread each, but only one of them runs at a time: the
first until it ends or reaches a merge call, then the second, and so on. The
calling thread passes the turn and runs the merge functions. Spec: RUN-1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from stratagem import _devices
from stratagem._contexts.context import cross_replica, run_options
from stratagem._contexts.replica_context import MergeCall, ReplicaContext
from stratagem._replicas.regroup import regroup, select_replica
from stratagem._replicas.torch_state import TorchState
from stratagem._variables import creators as _creators
from stratagem._variables.shared_creation import SharedCreation
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


@dataclass(frozen=True)
class _Finished:
    """The replica's function has returned."""

    result: Any


@dataclass(frozen=True)
class _Failed:
    """The replica's function has raised."""

    error: BaseException


@dataclass(frozen=True)
class _Merging:
    """The replica waits in a merge call."""

    merge_fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    torch_state: TorchState


_Report = _Finished | _Failed | _Merging


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


def run_replicas(
    strategy: Strategy,
    devices: Sequence[str],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Call `fn` once per device and merge what the calls return.

    Distributed values among the arguments are replaced by each replica's
    component. A single replica runs in the calling thread.

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
    first = strategy.extended._first_replica_id
    with ReplicaContext(strategy, first), _devices.device(devices[0]):
        return _bound(0, fn, args, kwargs)()


def _bound(
    index: int, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Return `fn` with what the replica `index` gets as arguments."""
    mine = {key: select_replica(index, value) for key, value in kwargs.items()}
    return partial(fn, *(select_replica(index, value) for value in args), **mine)


class _Rounds:
    """The replicas of one run, from one merge call to the next."""

    def __init__(
        self,
        strategy: Strategy,
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
            _Replica(
                partial(surroundings.entered, index),
                _bound(index, fn, args, kwargs),
            )
            for index in range(len(devices))
        ]

    def run(self) -> Any:
        """Run all replicas to their ends and merge their results."""
        answers: Sequence[Any] = [None] * len(self._replicas)
        try:
            while True:
                reports = self._round(answers)
                ends = [r.result for r in reports if isinstance(r, _Finished)]
                if len(ends) == len(reports):
                    return regroup(ends)
                answers = self._merged(reports)
        finally:
            for replica in self._replicas:
                replica.stop()

    def _round(self, answers: Sequence[Any]) -> list[_Report]:
        self._shared.first_runs(True)
        reports = []
        for report in self._next_reports(answers):
            self._shared.first_runs(False)
            reports.append(_unfailed(report))
        return reports

    def _next_reports(self, answers: Sequence[Any]) -> Iterator[_Report]:
        turns = zip(self._replicas, answers, strict=True)
        if not self._concurrent:
            return (replica.turn(answer) for replica, answer in turns)
        for replica, answer in turns:
            replica.resume(answer)
        return (replica.report() for replica in self._replicas)

    def _merged(self, reports: Sequence[_Report]) -> list[Any]:
        """Run the merge function of the first replica; return each one's answer."""
        calls = [report for report in reports if isinstance(report, _Merging)]
        if len(calls) < len(reports):
            raise self._unequal_merges(reports)
        first = calls[0]
        args = regroup([tuple(call.args) for call in calls])
        kwargs = regroup([call.kwargs for call in calls])
        with cross_replica(self._strategy), first.torch_state.applied():
            result = first.merge_fn(self._strategy, *args, **kwargs)
        return [select_replica(index, result) for index in range(len(calls))]

    def _unequal_merges(self, reports: Sequence[_Report]) -> ContextError:
        waiting = [i for i, r in enumerate(reports) if isinstance(r, _Merging)]
        return ContextError(
            "The replicas made a different number of `merge_call` calls: replicas "
            f"{waiting} of {len(reports)} wait in one and the others have returned; "
            "whether to call it (or all_reduce, or assign) must not depend on the "
            "replica"
        )


def _unfailed(report: _Report) -> _Report:
    if isinstance(report, _Failed):
        raise report.error
    return report


class _Surroundings:
    """What the threads of all replicas take over from the calling thread.

    Spec: RUN-3.
    """

    def __init__(
        self, strategy: Strategy, devices: Sequence[str], shared: SharedCreation
    ) -> None:
        self._strategy = strategy
        self._devices = devices
        self._creators = _creators.creators()
        self._torch_state = TorchState.capture()
        self._shared = shared

    @contextmanager
    def entered(self, index: int, merge: MergeCall) -> Iterator[None]:
        """Make this thread run the replica `index`."""
        strategy = self._strategy
        number = strategy.extended._first_replica_id + index
        creators = (*self._creators, self._shared.creator(index))
        with (
            ReplicaContext(strategy, number, merge),
            _devices.device(self._devices[index]),
            _creators.creator_scope(*creators),
            self._torch_state.applied(),
        ):
            yield


class _Replica:
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
        self._reports: SimpleQueue[_Report] = SimpleQueue()
        self._started = self._ended = False

    def turn(self, answer: Any) -> _Report:
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

    def report(self) -> _Report:
        """Wait until the replica has ended or reached a merge call."""
        report = self._reports.get()
        self._ended = not isinstance(report, _Merging)
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
        self._reports.put(_Merging(merge_fn, args, kwargs, TorchState.capture()))
        answer = self._answers.get()
        if isinstance(answer, _Stopped):
            raise answer
        return answer

    def _run(self) -> None:
        try:
            with self._surroundings(self._merge):
                result = self._call()
        except BaseException as error:
            self._reports.put(_Failed(error))
        else:
            self._reports.put(_Finished(result))


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

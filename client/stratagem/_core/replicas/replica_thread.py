"""The thread of one replica, which runs when it is told to, in its program's modes of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from stratagem._core.replicas.replica_context import MergeCall
from stratagem_proto.errors import ContextError

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

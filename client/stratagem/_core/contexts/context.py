"""Where a thread stands: default, cross-replica, replica or update context.

Each thread has a stack of contexts of its own; a thread that the user starts is in the default
context. Spec: CTX-1 to CTX-6, CTX-40.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stratagem._core.options import RunOptions
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyExtended, AnyReplicaContext, AnyStrategy


class ThreadContext:
    """One entry of a thread's stack; entered by `with`.

    Attributes:
        strategy: The strategy in whose hands the thread is.
        replica_context: The running replica, or None in cross-replica context.
        component: Index of the component that distributed values show here.
        written: In an update function, the mirrored variables that it has written; else None.
    """

    __slots__ = ("component", "replica_context", "strategy", "written")

    def __init__(
        self,
        strategy: AnyStrategy,
        replica_context: AnyReplicaContext | None = None,
        component: int | None = None,
    ) -> None:
        self.strategy = strategy
        self.replica_context = replica_context
        self.component = component
        self.written: dict[Any, None] | None = None

    def __enter__(self) -> ThreadContext:
        _thread.stack.append(self)
        _thread.current = self
        _thread.component = self.component
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack = _thread.stack
        stack.pop()
        _thread.current = stack[-1] if stack else None
        _thread.component = stack[-1].component if stack else None


class _Thread(threading.local):
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.stack: list[ThreadContext] = []
        self.current: ThreadContext | None = None
        self.component: int | None = None
        self.run_options: RunOptions | None = None


class _Default:
    """What is in charge outside of every scope; see `_default_strategy.install`."""

    strategy: AnyStrategy
    replica_context: AnyReplicaContext


_thread = _Thread()
DEFAULT = _Default()


def cross_replica(strategy: AnyStrategy) -> ThreadContext:
    """Return the cross-replica context of `strategy`."""
    return ThreadContext(strategy)


def updating(strategy: AnyStrategy, component: int = 0) -> ThreadContext:
    """Return the context of a function that updates a component. Spec: CTX-4."""
    return ThreadContext(strategy, None, component)


def clear() -> None:
    """Take this thread out of all contexts."""
    _thread.clear()


def current_context() -> ThreadContext | None:
    """Return the innermost context of this thread, None in the default one."""
    return _thread.current


def current_replica_id() -> int | None:
    """Return the index of the component that distributed values show here.

    In a replica context that is the replica's place among this process's replicas, in an update
    context the component that is updated; elsewhere None. This is one thread-local read, cheap
    enough for every access to a parameter.
    """
    return _thread.component


def updated_component() -> int | None:
    """Return the component that an update function works on, None outside of one."""
    context = current_context()
    if context is None or context.replica_context is not None:
        return None
    return context.component


def run_options() -> RunOptions | None:
    """Return the options of the `Strategy.run` that is being started here."""
    return _thread.run_options


class running_with:
    """Scope in which `run_options()` are `options`."""

    def __init__(self, options: RunOptions | None) -> None:
        self._options = options

    def __enter__(self) -> None:
        self._outer = _thread.run_options
        _thread.run_options = self._options

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _thread.run_options = self._outer


def get_strategy() -> AnyStrategy:
    """Return the current strategy; outside of every scope the default one.

    Spec: CTX-1 to CTX-6.
    """
    context = _thread.current
    return DEFAULT.strategy if context is None else context.strategy


def has_strategy() -> bool:
    """Return whether the current strategy is another than the default one.

    Spec: CTX-1 to CTX-6.
    """
    context = _thread.current
    return context is not None and context.strategy is not DEFAULT.strategy


def get_replica_context() -> AnyReplicaContext | None:
    """Return the replica that this thread runs, None in cross-replica context.

    Outside of every scope it is the default strategy's only replica.
    Spec: CTX-1 to CTX-6.
    """
    context = _thread.current
    return DEFAULT.replica_context if context is None else context.replica_context


def in_cross_replica_context() -> bool:
    """Return whether this thread is in a cross-replica context.

    Spec: CTX-1 to CTX-6.
    """
    context = _thread.current
    return context is not None and context.replica_context is None


def require_strategy(strategy: AnyStrategy) -> None:
    """Check that `strategy` is the current one.

    Raises:
        ContextError: It is not. Spec: CTX-33, CTX-34.
    """
    if get_strategy() is not strategy:
        raise _foreign(strategy)


def require_cross_replica_or_default(extended: AnyExtended, method: str) -> None:
    """Check that a method that acts across replicas may be called here.

    Raises:
        ContextError: Another strategy is in charge, or a replica is running. Spec: CTX-33, CTX-35.
    """
    context = _thread.current
    if context is None:
        return
    strategy = extended._container_strategy()
    if context.strategy is not strategy:
        raise _foreign(strategy)
    if context.replica_context is not None:
        raise ContextError(
            f"`{method}` of {strategy} requires being in cross-replica context, but "
            "a replica is running; use get_replica_context().merge_call() to get there"
        )


def require_replica(replica_context: AnyReplicaContext) -> None:
    """Check that this thread runs exactly this replica.

    Raises:
        ContextError: It does not. Spec: CTX-30 to CTX-32.
    """
    current = get_replica_context()
    if current is replica_context:
        return
    if current is None:
        raise ContextError(
            "Need to be inside `call_for_each_replica()`: a ReplicaContext is used in "
            "cross-replica context; use it only in the function given to run()"
        )
    if current.strategy is not replica_context.strategy:
        raise ContextError(
            "Mismatching tf.distribute.Strategy objects: this ReplicaContext belongs "
            f"to {replica_context.strategy}, but the current one is {current.strategy}"
        )
    raise ContextError(
        "Mismatching ReplicaContext: it is not the one of the running replica; call "
        "get_replica_context() anew in each replica function"
    )


def _foreign(strategy: AnyStrategy) -> ContextError:
    if not has_strategy():
        return ContextError(
            f'Need to be inside "with strategy.scope()" for {strategy}; enter its scope first'
        )
    return ContextError(
        f"Mixing different tf.distribute.Strategy objects: {strategy} is used while "
        f"{get_strategy()} is in charge; leave the scope of one before using the other"
    )

"""Where a thread stands: default, cross-replica, replica or update context.

Each thread has a stack of contexts of its own; a thread that the user starts is in the default
context. Spec: CTX-1 to CTX-6, CTX-40.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stratagem._core import device_names
from stratagem._core.device_names import nesting_error
from stratagem._core.options import RunOptions
from stratagem._core.variable_creation import clear_creators, creator_scope, creators
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyExtended, AnyReplicaContext, AnyStrategy

Value = TypeVar("Value")


class ContextVarScope(AbstractContextManager[None], Generic[Value]):
    """Gives a context variable a value while the body runs.

    A worker enters five of them for each function, for 0.35 us each; as generators they would take
    1.0.

    Args:
        variable: The variable.
        value: The value.
    """

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Value], value: Value) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


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

    def __exit__(self, *_: object) -> None:
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
    """What is in charge outside of every scope; see `_hosting/default_strategy.py`."""

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


def exchange_run_options(options: RunOptions | None) -> RunOptions | None:
    """Set what `run_options()` returns in this thread; return what it was, to be set again."""
    outer, _thread.run_options = _thread.run_options, options
    return outer


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


_Strategy = TypeVar("_Strategy", bound="AnyStrategy")
_Resources = Callable[[], AbstractContextManager[object]]


class Scope(Generic[_Strategy]):
    """What `Strategy.scope` returns: the cross-replica context of a strategy.

    Within a scope of the same strategy nothing is pushed, so that there it may be entered any
    number of times. Elsewhere it serves once.
    Spec: CTX-10 to CTX-13.

    Args:
        strategy: The strategy.
        name: Prefix for the names of the modules built inside.
        resources: Opens the strategy's resources; by default as its hook for it does.
    """

    def __init__(
        self, strategy: _Strategy, name: str | None = None, resources: _Resources | None = None
    ) -> None:
        self._strategy = strategy
        default = partial(strategy.extended._scope_resources, name)
        self._resources = resources or default
        strategy.extended._names.release()
        self._entries: list[ImplicitScope | None] = []
        self._used = False

    def __enter__(self) -> _Strategy:
        entry = None
        if has_strategy():
            require_cross_replica_or_default(self._strategy.extended, "scope")
        else:
            self._require_unused()
            entry = ImplicitScope(self._strategy, self._resources)
            entry.__enter__()
            self._used = True
        self._entries.append(entry)
        return self._strategy

    def _require_unused(self) -> None:
        if self._used:
            raise ContextError(
                f"This scope of {self._strategy} has been left and cannot be entered "
                "again; call strategy.scope() for a new one"
            )

    def __exit__(self, *error: Any) -> None:
        entry = self._entries[-1]
        if entry is not None:
            entry.check_nesting()
        self._entries.pop()
        if entry is not None:
            entry.leave(*error)


class ImplicitScope(AbstractContextManager[None]):
    """The scope that a strategy's methods enter by themselves; it serves once.

    It pushes what is undone in reverse, and leaves the strategy's resources alone.

    Args:
        strategy: The strategy.
        resources: Opens resources after all, for a scope that the user asked for.
    """

    def __init__(self, strategy: AnyStrategy, resources: _Resources | None = None) -> None:
        self._strategy, self._resources = strategy, resources
        self._open: list[AbstractContextManager[object]] = []

    def __enter__(self) -> None:
        extended = self._strategy._extended
        device = extended._default_device
        self._context = ThreadContext(self._strategy)
        self._creator_scope = creator_scope(extended._create_in_scope)
        # By an ExitStack a strategy would be entered and left in 5.3 us, not in 3.5.
        scopes: list[AbstractContextManager[object]] = [self._context, self._creator_scope]
        if device is not None:
            scopes.append(device_names.device(device))
        try:
            for scope in scopes:
                scope.__enter__()
                self._open.append(scope)
            self._device_depth = None if device is None else device_names.depth()
            if self._resources is not None:
                resources = self._resources()
                resources.__enter__()
                self._open.append(resources)
        except BaseException:
            self.leave(*sys.exc_info())
            raise

    def __exit__(self, *error: Any) -> None:
        self.check_nesting()
        self.leave(*error)

    def check_nesting(self) -> None:
        """Check that what was opened inside is closed. Spec: CTX-13."""
        if creators() is not self._creator_scope.inside:
            raise nesting_error("Variable creator")
        if self._device_depth not in (None, device_names.depth()):
            raise nesting_error("Device")
        if _thread.current is not self._context:
            raise nesting_error("Strategy")

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo all that was pushed."""
        while self._open:
            try:
                self._open.pop().__exit__(kind, error, trace)
            except BaseException:
                self.leave(*sys.exc_info())
                raise


_NOTHING: AbstractContextManager[object] = nullcontext()


def entered(strategy: AnyStrategy) -> AbstractContextManager[object]:
    """Return a scope in which `strategy` is current, empty where it is already.

    Raises:
        ContextError: Another strategy is in charge. Spec: CTX-33, CTX-44.
    """
    if _thread.current is None:
        return strategy._implicit_scope()
    require_strategy(strategy)
    return _NOTHING


class _GlobalScope(threading.local):
    def __init__(self) -> None:
        self.scope: AbstractContextManager[object] | None = None


_global = _GlobalScope()


def experimental_set_strategy(strategy: AnyStrategy | None) -> None:
    """Make a strategy the current one of this thread, until another one is set.

    It stands for a `with strategy.scope()` around the rest of the program, for instance in a
    notebook.

    Args:
        strategy: The strategy, in place of the one that was set before; None to return to the
            default one.

    Raises:
        ContextError: A `with strategy.scope()` is open, or a replica is running; or a scope that
            was opened since the last call is still open.

    Spec: CTX-13, CTX-16.
    """
    if _global.scope is not None:
        _global.scope.__exit__(None, None, None)
        _global.scope = None
    if has_strategy():
        raise ContextError(
            "Must not be called inside a `tf.distribute.Strategy` scope, but "
            f"{get_strategy()} is in charge; call experimental_set_strategy before "
            "`with strategy.scope()`, or instead of it"
        )
    if strategy is not None:
        scope = strategy.scope()
        scope.__enter__()
        _global.scope = scope


def clear_remains() -> None:
    """Leave every scope of this thread, as if none had been entered.

    A function that is given up may be interrupted while it enters or leaves one, and
    `experimental_set_strategy` lasts.
    """
    if current_context() or creators() or device_names.depth():
        _thread.clear()
        clear_creators()
        device_names.clear()
        _global.scope = None


_index: ContextVar[int | None] = ContextVar("stratagem_worker_index", default=None)


def experimental_get_current_worker_index() -> int:
    """Return the index of the worker that runs this function.

    For functions that `ClusterCoordinator.schedule` runs, and for those given to
    `create_per_worker_dataset`, which may read another part of the data on each worker.

    Raises:
        ContextError: No worker runs this; it is called from elsewhere.

    Spec: COO-17.
    """
    index = _index.get()
    if index is None:
        raise ContextError(
            "Cannot retrieve the worker index: this function is not being executed on "
            "a worker; call experimental_get_current_worker_index in what is given to "
            "ClusterCoordinator.schedule or create_per_worker_dataset"
        )
    return index


def runs_on_a_worker() -> bool:
    """Return whether a worker runs what asks."""
    return _index.get() is not None


def on_worker(index: int) -> AbstractContextManager[None]:
    """Let this thread run functions for a worker."""
    return ContextVarScope(_index, index)

"""Entering and leaving a strategy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from stratagem._core import device_names
from stratagem._core.contexts.context import (
    cross_replica,
    current_context,
    has_strategy,
    require_cross_replica_or_default,
    require_strategy,
)
from stratagem._core.nesting import nesting_error
from stratagem._core.variables import creators as _creators
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entry = self._entries[-1]
        if entry is not None:
            entry.check_nesting()
        self._entries.pop()
        if entry is not None:
            entry.leave(kind, error, trace)


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
        try:
            self._context = cross_replica(self._strategy)
            self._enter(self._context)
            self._enter(_creators.creator_scope(extended._create_in_scope))
            if device is not None:
                self._enter(device_names.device(device))
            self._creators = _creators.creators()
            self._device_depth = None if device is None else device_names.depth()
            if self._resources is not None:
                self._enter(self._resources())
        except BaseException:
            self.leave(*sys.exc_info())
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.check_nesting()
        self.leave(kind, error, trace)

    def _enter(self, context: AbstractContextManager[object]) -> None:
        # By an ExitStack a strategy would be entered and left in 5.3 us, not in 3.5.
        context.__enter__()
        self._open.append(context)

    def check_nesting(self) -> None:
        """Check that what was opened inside is closed. Spec: CTX-13."""
        if _creators.creators() is not self._creators:
            raise nesting_error("Variable creator")
        if self._device_depth not in (None, device_names.depth()):
            raise nesting_error("Device")
        if current_context() is not self._context:
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
    if current_context() is None:
        return strategy._implicit_scope()
    require_strategy(strategy)
    return _NOTHING

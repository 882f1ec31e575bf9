"""A function with its arguments, as workers get it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from stratagem._core.contexts import entered
from stratagem._hosting.hosting import hosting_of
from stratagem_proto.errors import InvalidTypeError, OutOfRangeError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


@dataclass(frozen=True)
class FunctionCall:
    """What a worker runs, in the scope of a strategy if it has one."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    strategy: Strategy | None = None

    def __call__(self) -> Any:
        """Call the function and return what it returns.

        Raises:
            OutOfRangeError: The function let the end of an iterator pass. Spec: COO-15.
            Exception: What the function raises.
        """
        try:
            return self._result()
        except StopIteration as end:
            raise OutOfRangeError(
                "End of sequence: the dataset has no further elements; make a new "
                "iterator to start again"
            ) from end

    def __reduce__(self) -> tuple[type[FunctionCall], tuple[Any, ...]]:
        # Some workers load nothing that has to be made without a call.
        return FunctionCall, (self.function, self.args, self.kwargs, self.strategy)

    def _result(self) -> Any:
        if self.strategy is None:
            return self.function(*self.args, **self.kwargs)
        hosting = hosting_of(self.strategy.extended)
        with entered(self.strategy), nullcontext() if hosting is None else hosting.in_function():
            return self.function(*self.args, **self.kwargs)


def bound(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return arguments of a function as `FunctionCall` has them. Spec: COO-4.

    Raises:
        InvalidTypeError: It cannot be called so.
    """
    if not callable(fn):
        raise InvalidTypeError(
            f"schedule takes a function, not {type(fn).__name__}; pass the function "
            "itself and its arguments by args=(...)"
        )
    if args is not None and (not isinstance(args, Sequence) or isinstance(args, str | bytes)):
        raise InvalidTypeError(
            f"args must be a tuple or a list, not {type(args).__name__}; write "
            "args=(value,) for one argument"
        )
    given = tuple(args or ()), dict(kwargs or {})
    if _surely_fit(fn, *given):
        return given
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        # Functions written in C may not tell.
        return given
    try:
        signature.bind(*given[0], **given[1])
    except TypeError as error:
        raise InvalidTypeError(f"{name_of(fn)} cannot be called like this: {error}") from None
    return given


def _surely_fit(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether arguments fit, as far as a function's code tells.

    To make a signature is a large part of the work to schedule a function.
    """
    if type(fn) is not FunctionType or fn.__dict__ or kwargs:
        return False
    code, defaults = fn.__code__, fn.__defaults__ or ()
    required = code.co_argcount - len(defaults)
    return not code.co_kwonlyargcount and required <= len(args) <= code.co_argcount


def name_of(fn: Callable[..., Any]) -> str:
    """Return what errors call a function."""
    # Not its repr: that of a variable's method would read the variable.
    return getattr(fn, "__qualname__", type(fn).__name__)

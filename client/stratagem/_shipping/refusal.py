"""Saying what of a value it is that cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, getclosurevars, signature
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from stratagem_proto.errors import InvalidTypeError, StratagemError

_DEEPEST = 50
"""Values may contain themselves."""

Write = Callable[[object], object]
"""Pickles a value, or fails."""


class _Step(NamedTuple):
    """The way from a value to a part of it.

    Attributes:
        expression: In Python, as in ".lock" or "[0]".
        function: The function that uses the part, if it is that of one.
    """

    expression: str
    function: str = ""


def refusal(value: object, what: str, write: Write, error: Exception) -> Exception:
    """Return the error of what cannot be pickled, which says what of it cannot.

    The message calls the value `what`. `write` fails for each part that cannot be pickled.
    """
    steps: list[_Step] = []
    while len(steps) < _DEEPEST and (found := _failing(value, write, error)):
        step, value, error = found
        steps.append(step)
    return InvalidTypeError(
        f"{what} cannot be sent between a program and its workers: "
        f"{_path(steps)} is {_described(value)}, which cannot be pickled ({error}). "
        "Make it inside the function, or pass what it is made of"
    )


def _failing(
    value: object, write: Write, reason: Exception
) -> tuple[_Step, object, Exception] | None:
    """Return the first part of a value that cannot be pickled by itself."""
    parts = _parts(value)
    if parts is None:
        # What is refused on purpose may not be looked into.
        known = isinstance(reason, StratagemError)
        parts = iter(()) if known else _attributes(value)
    for step, part in parts:
        try:
            write(part)
        except Exception as error:
            return step, part, error
    return None


def _path(steps: Sequence[_Step]) -> str:
    """Return the path to a part, as in "loader.lock in function 'train_step'"."""
    path = place = ""
    for step in steps:
        if step.function:
            path, place = "", f" in function {step.function!r}"
        path += step.expression
    return f"{path.removeprefix('.') or 'it'}{place}"


def _described(value: object) -> str:
    cls = type(value)
    prefix = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"a {prefix}{cls.__qualname__}"


def _parts(value: Any) -> Iterator[tuple[_Step, object]] | None:
    """Return what a function or a container has in it; None for other things."""
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, MethodType):
        return iter([(_Step(".__self__"), value.__self__)])
    if isinstance(value, partial):
        names = "func", "args", "keywords"
        return _items(".{}", {name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return _items("[{!r}]", value)
    if isinstance(value, list | tuple | set | frozenset):
        return _items("[{}]", dict(enumerate(value)))
    return None


def _attributes(value: object) -> Iterator[tuple[_Step, object]]:
    return _items(".{}", getattr(value, "__dict__", {}))


def _items(form: str, parts: Mapping[Any, object]) -> Iterator[tuple[_Step, object]]:
    return ((_Step(form.format(key)), part) for key, part in parts.items())


def _parts_of_function(function: FunctionType) -> Iterator[tuple[_Step, object]]:
    used = getclosurevars(function)
    for name, part in {**used.nonlocals, **used.globals}.items():
        yield _Step(name, function.__qualname__), part
    for name, parameter in signature(function).parameters.items():
        if parameter.default is not Parameter.empty:
            yield _Step(name, function.__qualname__), parameter.default

"""What scenarios return or raise, as JSON that is the same for both libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from tests.differential.library import Library

Answer: TypeAlias = Any
"""JSON: numbers, strings, None, and lists and objects of them."""


@dataclass(frozen=True)
class Raised:
    """An error that a scenario met.

    Attributes:
        classes: The names of its class and of the bases, the nearest first.
        says: Which of the expected fragments its message contains.
    """

    classes: list[str]
    says: dict[str, bool]


def attempt(call: Callable[..., Any], *arguments: Any, says: tuple[str, ...] = ()) -> Any:
    """Return what a call returns, or the error that it raises.

    Args:
        call: What to try.
        arguments: What to call it with.
        says: Fragments that the error's message should contain.
    """
    try:
        return call(*arguments)
    except Exception as error:
        classes = [kind.__name__ for kind in type(error).__mro__]
        return Raised(
            classes[: classes.index("Exception")],
            {fragment: fragment in str(error) for fragment in says},
        )


def answer_of(call: Callable[[], Any], library: Library, says: tuple[str, ...] = ()) -> Answer:
    """Return as JSON what a call returns or raises."""
    return normal_form(attempt(call, says=says), library)


def normal_form(value: Any, library: Library) -> Answer:
    """Return a nest of values as JSON."""
    if isinstance(value, Enum):
        return {"enum": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | Mapping):
        return _nest(value, library)
    opened = library.opened(value)
    if opened is not None and opened[0] != "tensor":
        return {opened[0]: normal_form(opened[1], library)}
    return _leaf(value if opened is None else opened[1], opened is not None)


def _nest(value: Any, library: Library) -> Answer:
    if isinstance(value, Mapping):
        named = {str(key): normal_form(item, library) for key, item in value.items()}
        return {type(value).__name__: named}
    if hasattr(value, "_fields"):
        return {type(value).__name__: normal_form(value._asdict(), library)}
    items = [normal_form(item, library) for item in value]
    return items if isinstance(value, list) else {"tuple": items}


def _leaf(value: Any, is_tensor: bool) -> Answer:
    if isinstance(value, Raised):
        return {"error": list(value.classes), "says": dict(value.says)}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray | np.generic):
        return _array("tensor" if is_tensor else "array", np.asarray(value))
    return {"object": type(value).__name__}


def _array(kind: str, array: Any) -> Answer:
    if array.dtype == object:  # TensorFlow's strings
        return np.char.decode(array.astype(bytes)).tolist()
    values = {kind: array.dtype.name, "values": array.tolist()}
    return values if array.size else {**values, "shape": list(array.shape)}

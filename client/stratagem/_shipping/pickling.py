"""Pickles of functions and their arguments, and marks that tell whether values have changed."""

from __future__ import annotations

import io
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

import torch
from cloudpickle import cloudpickle
from torch import Tensor

from stratagem._shipping.classes import Classes, ClassUnpickler
from stratagem._shipping.code import CodePickler
from stratagem_proto.wire.tensors import as_bytes

ATOMS = {bool, int, str, bytes, type(None)}
_MAPPINGS = {dict, OrderedDict}
_SEQUENCES = {list, tuple}

_DEEPEST = 4
_LARGEST_TENSOR = 1 << 16
"""Bytes; a larger one is pickled instead of being kept twice."""


def mark_of(value: Any, name: Callable[[Any], int | None], depth: int = 0) -> object:
    """Return what is equal for equal values only; None if there is no such thing.

    `name` returns the handle of an object, None for what travels by value. `depth` counts the
    containers that the value is in.
    """
    cls = type(value)
    if cls in ATOMS:
        return cls, value
    if cls is float:
        # Zeros of either sign are equal, but not the same.
        return cls, value.hex()
    if depth > _DEEPEST:
        return None  # maybe it contains itself
    if cls in _MAPPINGS:
        items = [mark_of(item, name, depth + 1) for item in value.items()]
        return None if None in items else (cls, *items)
    if cls in _SEQUENCES:
        items = [mark_of(item, name, depth + 1) for item in value]
        return None if None in items else (cls, *items)
    if is_plain_tensor(value):
        return _mark_of_tensor(value)
    handle = name(value)
    return None if handle is None else ("handle", handle)


def _mark_of_tensor(value: Any) -> object:
    if value.nbytes > _LARGEST_TENSOR:
        return None
    about = value.dtype, tuple(value.shape), value.requires_grad, value.device.type
    return *about, bytes(as_bytes(value))


Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def is_plain_tensor(value: object) -> bool:
    """Return whether something is a dense tensor, and not of a subclass."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and not value.is_quantized
        and value.device.type in ("cpu", "cuda")
    )


def reduced_tensor(tensor: Tensor) -> Reduced:
    """Return what pickle is to make of a dense tensor: its elements alone.

    torch would pickle all of the storage of a view. One on a GPU comes to the current GPU of the
    other side, or to the CPU where there is none.
    """
    shape, device = tuple(tensor.shape), tensor.device.type
    content = bytearray(as_bytes(tensor))
    return _rebuilt, (content, tensor.dtype, shape, tensor.requires_grad, device)


def _rebuilt(
    content: bytearray, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, device: str
) -> Tensor:
    # torch takes no empty buffers.
    flat = torch.frombuffer(content or bytearray(dtype.itemsize), dtype=dtype)
    made = flat[: math.prod(shape)].reshape(shape)
    if device == "cuda" and torch.cuda.is_available():
        made = made.to("cuda")
    return made.requires_grad_(requires_grad)


def partial_of(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
) -> partial[Any]:
    """Return a partial function; pickles of the class itself set attributes."""
    return partial(function, *args, **keywords)


Name = Callable[[Any], "int | None"]
"""Returns the handle of an object, None for what travels by value."""


class Pickler(CodePickler):
    """Writes values one by one: functions and classes as cloudpickle does.

    What modules have that others can import is named, in `__main__` it is contained.
    """

    def __init__(self, name: Name) -> None:
        self._buffer = io.BytesIO()
        self._name = name
        super().__init__(self._buffer, protocol=5)

    def write(self, value: object) -> bytes:
        """Return a pickle of one value."""
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            self.dump(value)
            return self._buffer.getvalue()
        finally:
            # It would keep alive what it has written.
            self.clear_memo()

    def reducer_override(self, value: Any) -> Any:
        # What cloudpickle itself calls to read a pickle; it would look for each of these in its
        # module.
        if getattr(value, "__module__", None) == cloudpickle.__name__:
            return NotImplemented
        handle = self._name(value)
        if handle is not None:
            return _object_of, (handle,)
        if is_plain_tensor(value):
            return reduced_tensor(value)
        if type(value) is partial and not value.__dict__:
            return partial_of, (value.func, value.args, value.keywords)
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, func: FunctionType) -> tuple[Any, ...]:
        made_of, state = self._function_getnewargs(func), _state_of(func)
        making, setting = cloudpickle._make_function, cloudpickle._function_setstate
        return making, made_of, state, None, None, setting


@lru_cache(maxsize=1024)
def _submodules(code: CodeType, packages: tuple[ModuleType, ...], loaded: int) -> list[ModuleType]:
    """Return the submodules of packages that code may use while so many modules are loaded."""
    found: list[ModuleType] = cloudpickle._find_imported_submodules(code, packages)
    return found


def _submodules_used(code: CodeType, used: Iterable[object]) -> list[ModuleType]:
    packages = tuple([one for one in used if isinstance(one, ModuleType)])
    return _submodules(code, packages, len(sys.modules)) if packages else []


# What cloudpickle makes of a function, but for its longest part: to look through all that is loaded
# for submodules that the function may need.
_state_of = FunctionType(
    cloudpickle._function_getstate.__code__,
    {**vars(cloudpickle), "_find_imported_submodules": _submodules_used},
)


def _object_of(handle: int) -> NoReturn:
    """Stand in pickles for `find` of the `Unpickler` that reads them."""
    raise NotImplementedError(f"only an Unpickler knows what has handle {handle}")


class Unpickler(ClassUnpickler):
    """Reads what `Pickler` writes."""

    def __init__(self, payload: bytes, find: Callable[[int], Any], classes: Classes) -> None:
        super().__init__(payload, classes)
        self._find = find

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == _object_of.__name__:
            return self._find
        return super().find_class(module, name)

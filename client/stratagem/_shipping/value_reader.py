"""Values from bytes that somebody may have made up."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cloudpickle import cloudpickle
from google.protobuf.message import DecodeError

from stratagem._core.distributed_values import Mirrored, PerReplica
from stratagem._core.tensors import IndexedSlices
from stratagem._shipping.value_writer import (
    ARRAY_DTYPE,
    DEEPEST,
    DTYPES,
    KEYS,
    LARGEST_OUTLINE,
    PREFIX,
    is_named_tuple,
    is_structure,
)
from stratagem_proto.errors import InvalidTypeError, MalformedStreamError
from stratagem_proto.protocol import MAX_RANK
from stratagem_proto.v1 import plain_value_pb2 as pb

_ADDRESSABLE = 1 << 63

Known = Callable[[str], "type | None"]
"""Returns the class that the program has sent by value under an identity."""

# Also what torch and NumPy say of what makes no tensor.
_MALFORMED = (ArithmeticError, DecodeError, LookupError, RuntimeError, TypeError, ValueError)


def known_to_program(identity: str) -> type | None:
    """Return the class that this program has sent to workers under an identity."""
    found: type | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
    return found


def read(payload: bytes, sender: str, known: Known = known_to_program) -> Any:
    """Return a value that `written` made bytes of.

    Takes no more memory than a few times what the payload has, and calls nothing that it names.

    Args:
        payload: The bytes.
        sender: Who sent them, for errors.
        known: The classes that travelled by value.

    Raises:
        MalformedStreamError: It is no value.
        InvalidTypeError: It has a named tuple of a class that this program has not loaded.
    """
    try:
        return _Reading(payload, known).whole()
    except InvalidTypeError as error:
        raise InvalidTypeError(f"{sender} returned {error}") from None
    except _MALFORMED as error:
        raise MalformedStreamError(
            f"{sender} returned what is no value of Stratagem ({error}). Another program may have "
            "its address, or somebody may have taken it over: stop it and look at its host"
        ) from error


class _Reading:
    """Reads one value."""

    def __init__(self, payload: bytes, known: Known) -> None:
        length = int.from_bytes(payload[:PREFIX], "little")
        end = PREFIX + length
        if len(payload) < end or length > LARGEST_OUTLINE:
            raise MalformedStreamError(f"{len(payload)} bytes with an outline of {length}")
        self._outline = payload[PREFIX:end]
        self._left = memoryview(payload)[end:]
        self._known = known

    def whole(self) -> Any:
        value = self.value(pb.PlainValue.FromString(self._outline), 0)
        if self._left:
            raise MalformedStreamError(f"{len(self._left)} bytes follow it")
        return value

    def value(self, message: pb.PlainValue, depth: int) -> Any:
        kind = message.WhichOneof("kind")
        if kind is None:
            raise MalformedStreamError("a part of it is of no kind")
        if kind == "nest":
            return self._nest(message.nest, depth)
        if kind == "buffer":
            return self._buffer(message.buffer)
        return _LEAVES[kind](getattr(message, kind))

    def _nest(self, nest: pb.Nest, depth: int) -> Any:
        # Some classes have parts of their own.
        if depth > DEEPEST + 2:
            raise MalformedStreamError(f"it has more than {DEEPEST} nests in each other")
        if nest.HasField("numbers"):
            items = self._numbers(nest.numbers)
        else:
            items = [self.value(item, depth + 1) for item in nest.items]
        if nest.kind == pb.NEST_KIND_NAMED_TUPLE:
            return self._named_tuple(nest.class_name, items)
        if nest.kind == pb.NEST_KIND_STRUCTURE:
            return _structure(nest.class_name, items)
        if nest.kind not in _NESTS:
            raise MalformedStreamError(f"there is no nest of kind {nest.kind}")
        return _NESTS[nest.kind](items)

    def _numbers(self, buffer: pb.Buffer) -> list[Any]:
        dtype = dtype_named(buffer.dtype)
        data = self._take(dtype.itemsize, (*buffer.shape,))
        numbers: list[Any] = tensor_of(data, dtype, (*buffer.shape,)).tolist()
        return numbers

    def _named_tuple(self, name: pb.ClassName, items: Sequence[Any]) -> Any:
        cls = found_class(name, self._known)
        if cls is None:
            module = name.module or "__main__"
            raise InvalidTypeError(
                f"a named tuple of class {module}.{name.name}, which this program has not loaded; "
                f"import {module} in it, or return a plain tuple"
            )
        if len(items) != len(cls._fields):  # type: ignore[attr-defined]
            raise MalformedStreamError(f"{len(items)} items for {cls.__qualname__}")
        # Whatever the class itself does when it is called.
        return tuple.__new__(cls, items)

    def _buffer(self, buffer: pb.Buffer) -> Any:
        shape = tuple(buffer.shape)
        if buffer.kind == pb.BUFFER_KIND_TENSOR:
            dtype = dtype_named(buffer.dtype)
            return tensor_of(self._take(dtype.itemsize, shape), dtype, shape)
        if buffer.kind in (pb.BUFFER_KIND_ARRAY, pb.BUFFER_KIND_SCALAR):
            kind = array_dtype_named(buffer.dtype)
            array = array_of(self._take(kind.itemsize, shape), kind, shape)
            # The empty index makes numbers of arrays without dimensions.
            return array if buffer.kind == pb.BUFFER_KIND_ARRAY else array[()]
        if buffer.kind not in _LONG_LEAVES:
            raise MalformedStreamError(f"there is no buffer of kind {buffer.kind}")
        return _LONG_LEAVES[buffer.kind](bytes(self._take(1, shape)))

    def _take(self, itemsize: int, shape: Sequence[int]) -> memoryview:
        nbytes = nbytes_of(itemsize, shape)
        if nbytes > len(self._left):
            raise MalformedStreamError(f"{len(self._left)} bytes are left for shape {list(shape)}")
        taken, self._left = self._left[:nbytes], self._left[nbytes:]
        return taken


def found_class(name: pb.ClassName, known: Known) -> type | None:
    """Return the class of a name, if it is loaded and of named tuples. Imports and runs nothing."""
    found = known(name.identity) if name.identity else _loaded(name.module, name.name)
    return found if isinstance(found, type) and is_named_tuple(found) else None


def found_structure(name: pb.ClassName) -> type | None:
    """Return the class of what a function of torch returns."""
    found = vars(torch.return_types).get(name.name)
    return found if isinstance(found, type) and is_structure(found) else None


def _loaded(module: str, name: str) -> Any:
    # By dictionaries: a module may have a `__getattr__` that imports something.
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype of a name.

    Raises:
        MalformedStreamError: There is none.
    """
    if name not in DTYPES:
        raise MalformedStreamError(f"there is no dtype {name[:40]!r}")
    return DTYPES[name]


def array_dtype_named(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name.

    Raises:
        MalformedStreamError: Arrays of such elements do not travel.
    """
    if not ARRAY_DTYPE.fullmatch(name):
        raise MalformedStreamError(f"arrays of {name[:40]!r} do not travel")
    return np.dtype(name)


def nbytes_of(itemsize: int, shape: Sequence[int]) -> int:
    """Return how many bytes elements in a shape have, before memory is taken for them.

    Raises:
        MalformedStreamError: Nothing has this shape.
    """
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise MalformedStreamError("a shape has too many dimensions, or a negative one")
    # Zeros are left out, because libraries compute the product of the other sizes, too.
    if math.prod(filter(None, shape)) * itemsize >= _ADDRESSABLE:
        raise MalformedStreamError(f"shape {list(shape)} has over 2^63 bytes")
    return math.prod(shape) * itemsize


def tensor_of(data: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if dtype is torch.bool:
        _require_booleans(data)
    # torch takes no empty buffers.
    flat = torch.frombuffer(bytearray(data) or bytearray(dtype.itemsize), dtype=dtype)
    return flat[: math.prod(shape)].reshape(tuple(shape))


def array_of(data: memoryview, dtype: np.dtype[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    if dtype.kind == "b":
        _require_booleans(data)
    return np.frombuffer(bytearray(data), dtype=dtype).reshape(tuple(shape))


def _require_booleans(data: memoryview) -> None:
    if data and np.frombuffer(data, dtype=np.uint8).max() > 1:
        raise MalformedStreamError("a boolean is neither 0 nor 1")


def _none(is_none: bool) -> None:
    if not is_none:
        raise MalformedStreamError("a part of it is of no kind")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "none": _none,
    "truth": bool,
    "integer": int,
    "large_integer": lambda data: int.from_bytes(data, "little", signed=True),
    "real": float,
    "text": _text,
    "octets": bytes,
    "dtype": dtype_named,
    "device": torch.device,
}

_LONG_LEAVES: dict[int, Callable[[bytes], Any]] = {
    pb.BUFFER_KIND_TEXT: _text,
    pb.BUFFER_KIND_OCTETS: bytes,
}


def _keyed(items: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of a key and a value."""
    return [*zip(_keys(items[::2]), items[1::2], strict=True)]


def _keys(items: Sequence[Any]) -> Sequence[Any]:
    for item in items:
        if type(item) not in KEYS or (type(item) is int and item.bit_length() > 64):
            raise MalformedStreamError(f"a {type(item).__name__} is a key")
    return items


def _state_dict(items: Sequence[Any]) -> OrderedDict[Any, Any]:
    state, noted = items
    if type(state) is not OrderedDict or type(noted) is not OrderedDict:
        raise MalformedStreamError("a state_dict is of other parts")
    state._metadata = noted  # type: ignore[attr-defined]
    return state


def _structure(name: pb.ClassName, items: Sequence[Any]) -> Any:
    cls = found_structure(name)
    if cls is None:
        raise MalformedStreamError("no function of torch returns such a tuple")
    return cls(items)


def _complex(items: Sequence[Any]) -> complex:
    real, imaginary = items
    return complex(float(real), float(imaginary))


def _sparse(items: Sequence[Any]) -> torch.Tensor:
    indices, values, size, is_coalesced = items
    return torch.sparse_coo_tensor(
        indices, values, size, is_coalesced=is_coalesced, check_invariants=True
    )


_LAYOUTS = {
    "sparse_csr": torch.sparse_csr,
    "sparse_csc": torch.sparse_csc,
    "sparse_bsr": torch.sparse_bsr,
    "sparse_bsc": torch.sparse_bsc,
}


def _compressed(items: Sequence[Any]) -> torch.Tensor:
    layout, outer, inner, values, size = items
    return torch.sparse_compressed_tensor(
        outer, inner, values, size, layout=_LAYOUTS[layout], check_invariants=True
    )


def _slices(items: Sequence[Any]) -> IndexedSlices:
    values, indices, dense_shape = items
    if not isinstance(values, torch.Tensor) or not isinstance(indices, torch.Tensor):
        raise MalformedStreamError("IndexedSlices are of other parts")
    return IndexedSlices(values, indices, dense_shape)


def _per_replica(items: Sequence[Any]) -> PerReplica:
    without_rows, *values = items
    found = PerReplica(values)
    if without_rows:
        found.without_rows = tuple(map(int, without_rows))
    return found


_NESTS: dict[int, Callable[[Sequence[Any]], Any]] = {
    pb.NEST_KIND_TUPLE: tuple,
    pb.NEST_KIND_LIST: list,
    pb.NEST_KIND_SET: lambda items: set(_keys(items)),
    pb.NEST_KIND_FROZEN_SET: lambda items: frozenset(_keys(items)),
    pb.NEST_KIND_DICT: lambda items: dict(_keyed(items)),
    pb.NEST_KIND_ORDERED_DICT: lambda items: OrderedDict(_keyed(items)),
    pb.NEST_KIND_STATE_DICT: _state_dict,
    pb.NEST_KIND_SIZE: torch.Size,
    pb.NEST_KIND_COMPLEX: _complex,
    pb.NEST_KIND_SPARSE_COO: _sparse,
    pb.NEST_KIND_SPARSE_COMPRESSED: _compressed,
    pb.NEST_KIND_INDEXED_SLICES: _slices,
    pb.NEST_KIND_PER_REPLICA: _per_replica,
    pb.NEST_KIND_MIRRORED: Mirrored,
}

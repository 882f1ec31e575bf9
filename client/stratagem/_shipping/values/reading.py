"""Values from bytes that somebody may have made up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from google.protobuf.message import DecodeError

from stratagem._core.distributed_values import Mirrored, PerReplica
from stratagem._core.tensors import IndexedSlices
from stratagem._shipping.values import buffers
from stratagem._shipping.values.named_classes import (
    Known,
    found_class,
    found_structure,
    known_to_program,
)
from stratagem._shipping.values.writing import DEEPEST, KEYS, LARGEST_OUTLINE, PREFIX
from stratagem_proto.errors import InvalidTypeError, MalformedStreamError
from stratagem_proto.v1 import plain_value_pb2 as pb

# Also what torch and NumPy say of what makes no tensor.
_MALFORMED = (ArithmeticError, DecodeError, LookupError, RuntimeError, TypeError, ValueError)


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
        dtype = buffers.dtype_named(buffer.dtype)
        data = self._take(dtype.itemsize, (*buffer.shape,))
        numbers: list[Any] = buffers.tensor_of(data, dtype, (*buffer.shape,)).tolist()
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
            dtype = buffers.dtype_named(buffer.dtype)
            return buffers.tensor_of(self._take(dtype.itemsize, shape), dtype, shape)
        if buffer.kind in (pb.BUFFER_KIND_ARRAY, pb.BUFFER_KIND_SCALAR):
            kind = buffers.array_dtype_named(buffer.dtype)
            array = buffers.array_of(self._take(kind.itemsize, shape), kind, shape)
            # The empty index makes numbers of arrays without dimensions.
            return array if buffer.kind == pb.BUFFER_KIND_ARRAY else array[()]
        if buffer.kind not in _LONG_LEAVES:
            raise MalformedStreamError(f"there is no buffer of kind {buffer.kind}")
        return _LONG_LEAVES[buffer.kind](bytes(self._take(1, shape)))

    def _take(self, itemsize: int, shape: Sequence[int]) -> memoryview:
        nbytes = buffers.nbytes_of(itemsize, shape)
        if nbytes > len(self._left):
            raise MalformedStreamError(f"{len(self._left)} bytes are left for shape {list(shape)}")
        taken, self._left = self._left[:nbytes], self._left[nbytes:]
        return taken


def _none(is_none: bool) -> None:
    if not is_none:
        raise MalformedStreamError("a part of it is of no kind")


def _large(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "none": _none,
    "truth": bool,
    "integer": int,
    "large_integer": _large,
    "real": float,
    "text": _text,
    "octets": bytes,
    "dtype": buffers.dtype_named,
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


def _set(items: Sequence[Any]) -> set[Any]:
    return set(_keys(items))


def _frozen_set(items: Sequence[Any]) -> frozenset[Any]:
    return frozenset(_keys(items))


def _dict(items: Sequence[Any]) -> dict[Any, Any]:
    return dict(_keyed(items))


def _ordered(items: Sequence[Any]) -> OrderedDict[Any, Any]:
    return OrderedDict(_keyed(items))


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
    pb.NEST_KIND_SET: _set,
    pb.NEST_KIND_FROZEN_SET: _frozen_set,
    pb.NEST_KIND_DICT: _dict,
    pb.NEST_KIND_ORDERED_DICT: _ordered,
    pb.NEST_KIND_STATE_DICT: _state_dict,
    pb.NEST_KIND_SIZE: torch.Size,
    pb.NEST_KIND_COMPLEX: _complex,
    pb.NEST_KIND_SPARSE_COO: _sparse,
    pb.NEST_KIND_SPARSE_COMPRESSED: _compressed,
    pb.NEST_KIND_INDEXED_SLICES: _slices,
    pb.NEST_KIND_PER_REPLICA: _per_replica,
    pb.NEST_KIND_MIRRORED: Mirrored,
}

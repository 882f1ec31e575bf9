"""Values as bytes, without pickle."""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import torch
from cloudpickle import cloudpickle

from stratagem._core.distributed_values import Mirrored, PerReplica
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variables import Variable
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._shipping.pickling import described
from stratagem_proto.errors import InvalidTypeError
from stratagem_proto.v1 import plain_value_pb2 as pb

_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}
"""What elements of tensors may be, by name."""

# Booleans, numbers, strings, times; neither objects nor records.
ARRAY_DTYPE = re.compile(r"[<>|=][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_named_tuple(cls: type) -> bool:
    """Return whether a class is of tuples whose items have names, as `typing.NamedTuple` makes."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_structure(cls: type) -> bool:
    """Return whether functions of torch return such tuples."""
    return issubclass(cls, tuple) and vars(torch.return_types).get(cls.__name__) is cls


DEEPEST = 40
"""Nests in each other. The readers of messages allow somewhat more."""

LARGEST_OUTLINE = 1 << 24
"""Bytes of a value without its buffers, of which a reader takes a multiple as memory."""

PREFIX = 4
"""Bytes of the length before the outline."""

KEYS = (bool, int, float, str, bytes, type(None))
"""What keys of dicts and items of sets may be: no sender can make them collide."""

MOST_PARTS = 1 << 20
"""Parts of a value, of which each takes some microseconds."""

_LONG = 1 << 10
_MANY = 32
_WORD = 1 << 63

KINDS = (
    "tensors, arrays, numbers, strings, bytes and None, and tuples, lists, dicts and sets of these"
)
"""What travels, in words."""


class _Unsendable(Exception):
    """A part of a value does not travel."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = ""


def written(value: object, what: str, way_out: str) -> bytes:
    """Return a value as bytes, for `value_reader.read`.

    Args:
        value: The value.
        what: What errors call it.
        way_out: What errors say of what to do about it.

    Raises:
        InvalidTypeError: Something in it does not travel; says what, and where it is.
    """
    if value is None:
        return _NONE
    writing = _Writing()
    try:
        outline = writing.value(value, 0).SerializeToString()
        if len(outline) > LARGEST_OUTLINE:
            raise _Unsendable(f"has over {LARGEST_OUTLINE >> 20} MiB besides tensors and arrays")
    except _Unsendable as error:
        raise InvalidTypeError(f"{what}{error.path} {error.why}. {way_out}") from None
    return b"".join((len(outline).to_bytes(PREFIX, "little"), outline, *writing.buffers))


_NONE = b"\x02\x00\x00\x00" + pb.PlainValue(none=True).SerializeToString()


class _Writing:
    """Writes one value."""

    def __init__(self) -> None:
        self.buffers: list[bytes | memoryview] = []
        self._parts = 0

    def value(self, value: Any, depth: int) -> pb.PlainValue:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _Unsendable(
                f"is one of over {MOST_PARTS:,} parts; make tensors or arrays of them"
            )
        write = _WRITERS.get(type(value)) or _writer_of(value)
        return write(self, value, depth)

    def nest(self, kind: pb.NestKind, items: Iterable[Any], depth: int) -> pb.PlainValue:
        if depth >= DEEPEST:
            raise _Unsendable(f"is in {DEEPEST} nests, or contains itself")
        items = tuple(items)
        numbers = _numbers(items) if len(items) >= _MANY else None
        if numbers is not None:
            self.buffers.append(numbers.tobytes())
            dtype = "int64" if numbers.typecode == "q" else "float64"
            said = pb.Buffer(kind=pb.BUFFER_KIND_NUMBERS, dtype=dtype, shape=(len(items),))
            return pb.PlainValue(nest=pb.Nest(kind=kind, numbers=said))
        found = [self.item(index, item, depth) for index, item in enumerate(items)]
        return pb.PlainValue(nest=pb.Nest(kind=kind, items=found))

    def item(self, key: object, item: Any, depth: int) -> pb.PlainValue:
        try:
            return self.value(item, depth + 1)
        except _Unsendable as error:
            error.path = f"[{key!r}]{error.path}"
            raise

    def pairs(self, kind: pb.NestKind, pairs: Any, depth: int) -> pb.PlainValue:
        if depth >= DEEPEST:
            raise _Unsendable(f"is in {DEEPEST} nests, or contains itself")
        found = [(_key(key), self.item(key, value, depth)) for key, value in pairs]
        return pb.PlainValue(nest=pb.Nest(kind=kind, items=chain.from_iterable(found)))

    def buffer(
        self,
        kind: pb.BufferKind,
        data: bytes | memoryview,
        dtype: str = "",
        shape: Sequence[int] = (),
    ) -> pb.PlainValue:
        self.buffers.append(data)
        return pb.PlainValue(buffer=pb.Buffer(kind=kind, dtype=dtype, shape=shape))


def _numbers(items: Sequence[Any]) -> array[Any] | None:
    """Return numbers of one class as an array; None if they are others."""
    classes = {*map(type, items)}
    try:
        if classes == {float}:
            return array("d", items)
        return array("q", items) if classes == {int} else None
    except OverflowError:
        return None


_Write = Callable[[_Writing, Any, int], pb.PlainValue]


def _integer(writing: _Writing, value: int, depth: int) -> pb.PlainValue:
    if -_WORD <= value < _WORD:
        return pb.PlainValue(integer=value)
    nbytes = value.bit_length() // 8 + 1
    return pb.PlainValue(large_integer=value.to_bytes(nbytes, "little", signed=True))


def _complex(writing: _Writing, value: complex, depth: int) -> pb.PlainValue:
    # No deeper than a number, which it is.
    parts = [pb.PlainValue(real=value.real), pb.PlainValue(real=value.imag)]
    return pb.PlainValue(nest=pb.Nest(kind=pb.NEST_KIND_COMPLEX, items=parts))


def _text(writing: _Writing, value: str, depth: int) -> pb.PlainValue:
    data = value.encode("utf-8", "surrogatepass")
    if len(data) < _LONG:
        return pb.PlainValue(text=data)
    return writing.buffer(pb.BUFFER_KIND_TEXT, data, shape=(len(data),))


def _octets(writing: _Writing, value: bytes, depth: int) -> pb.PlainValue:
    if len(value) < _LONG:
        return pb.PlainValue(octets=value)
    return writing.buffer(pb.BUFFER_KIND_OCTETS, value, shape=(len(value),))


def _key(key: Any) -> pb.PlainValue:
    if type(key) not in KEYS or (type(key) is int and not -_WORD <= key < _WORD):
        raise _Unsendable(
            f"has the key {key!r}, {described(key)}; keys of dicts and items of sets are strings, "
            "bytes, None, and numbers of 64 bits"
        )
    # Keys have no buffers, which would make their order matter.
    if isinstance(key, str):
        return pb.PlainValue(text=key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return pb.PlainValue(octets=key)
    return _WRITERS[type(key)](_Writing(), key, 0)


def _tensor(writing: _Writing, value: torch.Tensor, depth: int) -> pb.PlainValue:
    if value.layout is torch.sparse_coo:
        sparse = value.detach()
        parts = sparse._indices(), sparse._values(), sparse.shape, sparse.is_coalesced()
        return writing.nest(pb.NEST_KIND_SPARSE_COO, parts, depth)
    if value.layout in _COMPRESSED:
        return _compressed(writing, value.detach(), depth)
    name = dtype_name(value.dtype)
    dense = value.layout is torch.strided and not (value.is_meta or value.is_nested)
    if not dense or value.is_quantized or name not in DTYPES:
        raise _Unsendable(
            f"is a tensor of {value.dtype} in layout {value.layout} on {value.device}, which does "
            "not travel; make it a dense one"
        )
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    elements = plain.reshape(-1).view(torch.uint8).numpy().data
    return writing.buffer(pb.BUFFER_KIND_TENSOR, elements, name, value.shape)


_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def _compressed(writing: _Writing, value: torch.Tensor, depth: int) -> pb.PlainValue:
    by_rows = value.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer, inner = (
        (value.crow_indices(), value.col_indices())
        if by_rows
        else (value.ccol_indices(), value.row_indices())
    )
    layout = str(value.layout).removeprefix("torch.")
    parts = layout, outer, inner, value.values(), value.shape
    return writing.nest(pb.NEST_KIND_SPARSE_COMPRESSED, parts, depth)


def _elements(
    writing: _Writing,
    kind: pb.BufferKind,
    array: np.ndarray[Any, Any],
    shape: tuple[int, ...],
) -> pb.PlainValue:
    if not ARRAY_DTYPE.fullmatch(array.dtype.str):
        raise _Unsendable(
            f"is an array of {array.dtype}; arrays of booleans, numbers, strings and times travel"
        )
    return writing.buffer(kind, array.tobytes(), array.dtype.str, shape)


def _in_order(kind: pb.NestKind, items: Callable[[Any], Iterable[Any]] = tuple) -> _Write:
    """Return what writes the items of a value, as a nest."""
    return lambda writing, value, depth: writing.nest(kind, items(value), depth)


def _set(kind: pb.NestKind) -> _Write:
    def write(writing: _Writing, value: Any, depth: int) -> pb.PlainValue:
        return pb.PlainValue(nest=pb.Nest(kind=kind, items=map(_key, value)))

    return write


def _dict(writing: _Writing, value: dict[Any, Any], depth: int) -> pb.PlainValue:
    return writing.pairs(pb.NEST_KIND_DICT, value.items(), depth)


def _ordered(writing: _Writing, value: OrderedDict[Any, Any], depth: int) -> pb.PlainValue:
    noted = vars(value).get("_metadata")
    if noted is None:
        return writing.pairs(pb.NEST_KIND_ORDERED_DICT, value.items(), depth)
    parts = OrderedDict(value), OrderedDict(noted)
    return writing.nest(pb.NEST_KIND_STATE_DICT, parts, depth)


def _dtype(writing: _Writing, value: torch.dtype, depth: int) -> pb.PlainValue:
    name = dtype_name(value)
    return pb.PlainValue(dtype=name) if name in DTYPES else _refuse(writing, value, depth)


def _named_tuple(writing: _Writing, value: Any, depth: int) -> pb.PlainValue:
    cls = type(value)
    identity = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls)
    only_here = identity is None and "<locals>" in cls.__qualname__
    if only_here or getattr(value, "__dict__", None):
        raise _Unsendable(
            f"is {described(value)}, a named tuple of a class that only the worker has, or with "
            "attributes besides its items; define the class where the program is, or return a "
            "plain tuple"
        )
    found = writing.nest(pb.NEST_KIND_NAMED_TUPLE, value, depth)
    found.nest.class_name.name = cls.__qualname__
    if identity is not None:
        found.nest.class_name.identity = identity
    else:
        found.nest.class_name.module = cls.__module__
    return found


def _structure(writing: _Writing, value: Any, depth: int) -> pb.PlainValue:
    found = writing.nest(pb.NEST_KIND_STRUCTURE, value, depth)
    found.nest.class_name.name = type(value).__name__
    return found


def _refuse(writing: _Writing, value: object, depth: int) -> NoReturn:
    raise _Unsendable(f"is {described(value)}, which does not travel without pickle: {KINDS} do")


_WRITERS: dict[type, _Write] = {
    type(None): lambda writing, value, depth: pb.PlainValue(none=True),
    bool: lambda writing, value, depth: pb.PlainValue(truth=value),
    int: _integer,
    float: lambda writing, value, depth: pb.PlainValue(real=value),
    complex: _complex,
    str: _text,
    bytes: _octets,
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    np.ndarray: lambda writing, value, depth: _elements(
        writing, pb.BUFFER_KIND_ARRAY, value, value.shape
    ),
    tuple: _in_order(pb.NEST_KIND_TUPLE),
    list: _in_order(pb.NEST_KIND_LIST),
    torch.Size: _in_order(pb.NEST_KIND_SIZE),
    set: _set(pb.NEST_KIND_SET),
    frozenset: _set(pb.NEST_KIND_FROZEN_SET),
    dict: _dict,
    OrderedDict: _ordered,
    IndexedSlices: _in_order(
        pb.NEST_KIND_INDEXED_SLICES, lambda value: (value.values, value.indices, value.dense_shape)
    ),
    PerReplica: _in_order(
        pb.NEST_KIND_PER_REPLICA, lambda value: (tuple(value.without_rows), *value.values)
    ),
    Mirrored: _in_order(pb.NEST_KIND_MIRRORED, lambda value: value.values),
    torch.dtype: _dtype,
    torch.device: lambda writing, value, depth: pb.PlainValue(device=str(value)),
}
"""By class; `_writer_of` says it for instances of subclasses."""


def _writer_of(value: object) -> _Write:
    if isinstance(value, Variable):
        return lambda writing, value, depth: _tensor(writing, value.value(), depth)
    if isinstance(value, ShardedVariable):
        return lambda writing, value, depth: _tensor(writing, value.read_value(), depth)
    if isinstance(value, torch.nn.Parameter):
        return _tensor
    if isinstance(value, np.generic):
        return lambda writing, value, depth: _elements(
            writing, pb.BUFFER_KIND_SCALAR, np.asarray(value), ()
        )
    if is_structure(type(value)):
        return _structure
    return _named_tuple if is_named_tuple(type(value)) else _refuse

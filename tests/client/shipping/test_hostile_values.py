"""Bytes in the place of values, from somebody who means harm."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stratagem import InvalidTypeError, MalformedStreamError, StratagemError
from stratagem._shipping.outcome_forms import PLAIN, decode_exception
from stratagem_proto.v1 import plain_value_pb2 as pb
from stratagem_proto.v1 import worker_pb2
from stratagem_proto.v1.error_pb2 import ErrorDetail, RecordedStatus
from tests.trap import unsprung

Item = pb.PlainValue
HUGE = 1 << 60


def payload(outline: bytes | pb.PlainValue, buffers: bytes = b"") -> bytes:
    data = outline if isinstance(outline, bytes) else outline.SerializeToString()
    return len(data).to_bytes(4, "little") + data + buffers


def buffer(kind: pb.BufferKind, dtype: str, *shape: int, data: bytes = b"") -> bytes:
    return payload(Item(buffer=pb.Buffer(kind=kind, dtype=dtype, shape=shape)), data)


def nest(kind: pb.NestKind, *items: pb.PlainValue, name: Any = None) -> pb.PlainValue:
    return Item(nest=pb.Nest(kind=kind, items=items, class_name=name))


def integers(*values: int) -> Sequence[pb.PlainValue]:
    return [Item(integer=value) for value in values]


def indices() -> pb.PlainValue:
    return Item(buffer=pb.Buffer(kind=pb.BUFFER_KIND_TENSOR, dtype="int64", shape=(1, 1)))


def deep(levels: int) -> pb.PlainValue:
    value = Item(none=True)
    for _ in range(levels):
        value = nest(pb.NEST_KIND_LIST, value)
    return value


def deep_bytes(levels: int) -> bytes:
    """As `deep`, of more levels than anybody would write."""
    data = Item(none=True).SerializeToString()
    for _ in range(levels):
        outer = pb.Nest(kind=pb.NEST_KIND_LIST).SerializeToString()
        data = outer + b"\x12" + _varint(len(data)) + data
        data = b"\x5a" + _varint(len(data)) + data
    return data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


SPARSE = nest(
    pb.NEST_KIND_SPARSE_COO,
    indices(),
    Item(buffer=pb.Buffer(kind=pb.BUFFER_KIND_TENSOR, dtype="float32", shape=(1,))),
    nest(pb.NEST_KIND_SIZE, *integers(2)),
    Item(truth=True),
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\x03\x00\x00\x00\x08",
        payload(b"\xff\xff"),
        payload(Item()),
        payload(Item(none=False)),
        payload(Item(none=True), b"more"),
        payload(Item(dtype="save")),
        payload(Item(device="nowhere")),
        payload(Item(text=b"\xff")),
        buffer(pb.BUFFER_KIND_TENSOR, "float32", HUGE),
        buffer(pb.BUFFER_KIND_TENSOR, "float32", HUGE, HUGE, HUGE),
        buffer(pb.BUFFER_KIND_TENSOR, "float32", 0, HUGE, HUGE),
        buffer(pb.BUFFER_KIND_TENSOR, "float32", -1),
        buffer(pb.BUFFER_KIND_TENSOR, "float32", *[1] * 1000, data=b"1234"),
        buffer(pb.BUFFER_KIND_TENSOR, "Tensor", 1, data=b"1234"),
        buffer(pb.BUFFER_KIND_TENSOR, "bool", 1, data=b"\x07"),
        buffer(pb.BUFFER_KIND_ARRAY, "|O", 1, data=bytes(8)),
        buffer(pb.BUFFER_KIND_ARRAY, "<f4", HUGE),
        buffer(pb.BUFFER_KIND_ARRAY, "<U0", HUGE),
        buffer(pb.BUFFER_KIND_ARRAY, "<f4,<f4", 1, data=bytes(8)),
        buffer(pb.BUFFER_KIND_TEXT, "", HUGE),
        buffer(99, "", 0),  # type: ignore[arg-type]
        payload(nest(99)),  # type: ignore[arg-type]
        payload(nest(pb.NEST_KIND_DICT, *integers(1))),
        payload(nest(pb.NEST_KIND_DICT, nest(pb.NEST_KIND_TUPLE), Item(none=True))),
        payload(nest(pb.NEST_KIND_DICT, Item(large_integer=bytes(100) + b"\x01"), Item(none=True))),
        payload(nest(pb.NEST_KIND_SET, nest(pb.NEST_KIND_LIST))),
        payload(nest(pb.NEST_KIND_STATE_DICT, Item(none=True), Item(none=True))),
        payload(nest(pb.NEST_KIND_COMPLEX, Item(text=b"a"), Item(real=1.0))),
        payload(nest(pb.NEST_KIND_SIZE, Item(text=b"a"))),
        payload(nest(pb.NEST_KIND_INDEXED_SLICES, *integers(1, 2, 3))),
        payload(nest(pb.NEST_KIND_SPARSE_COO, *integers(1))),
        payload(SPARSE, (9).to_bytes(8, "little") + bytes(4)),
        payload(nest(pb.NEST_KIND_PER_REPLICA)),
        payload(nest(pb.NEST_KIND_STRUCTURE, name=pb.ClassName(name="Popen"))),
        payload(nest(pb.NEST_KIND_STRUCTURE, name=pb.ClassName(name="max"))),
        payload(deep(45)),
        payload(deep_bytes(3000)),
    ],
)
def test_what_is_no_value_is_refused_by_name(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedStreamError, match="worker 7 returned what is no value"):
            PLAIN.load(data, "worker 7")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "name",
    [
        pb.ClassName(module="subprocess", name="Popen"),
        pb.ClassName(module="os", name="system"),
        pb.ClassName(module="builtins", name="tuple"),
        pb.ClassName(module="builtins", name="eval"),
        pb.ClassName(module="no_such_module", name="Point"),
        pb.ClassName(identity="made up", name="Point"),
        pb.ClassName(),
    ],
    ids=str,
)
def test_no_class_is_made_but_named_tuples_that_are_loaded(name: pb.ClassName) -> None:
    with pytest.raises(InvalidTypeError, match=r"worker 7 returned a named tuple of class"):
        PLAIN.load(payload(nest(pb.NEST_KIND_NAMED_TUPLE, name=name)), "worker 7")


def test_modules_are_not_imported_for_a_class() -> None:
    name = pb.ClassName(module="this", name="s")
    with pytest.raises(InvalidTypeError, match="which this program has not loaded"):
        PLAIN.load(payload(nest(pb.NEST_KIND_NAMED_TUPLE, name=name)), "worker 7")
    assert "this" not in sys.modules


def test_a_pickle_is_not_loaded_in_the_place_of_a_value(tmp_path: Path) -> None:
    with unsprung(tmp_path) as trap:
        places = [
            trap,
            payload(trap),
            payload(Item(none=True), trap),
            payload(Item(octets=trap)),
            payload(Item(large_integer=trap)),
            payload(Item(text=trap)),
            buffer(pb.BUFFER_KIND_ARRAY, "|O", len(trap), data=trap),
        ]
        for place in places:
            with suppress(StratagemError):
                PLAIN.load(place, "worker 7")


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "eval", "object", "Popen", ""])
def test_exceptions_that_are_told_are_errors_of_python(name: str) -> None:
    args = PLAIN.dump(("touch",))
    told = worker_pb2.ToldException(builtin=worker_pb2.BuiltinException(name=name, args=args))
    assert decode_exception(told) is None


@pytest.mark.parametrize("args", [b"", b"junk", PLAIN.dump([1]), PLAIN.dump(("a", "b"))])
def test_an_exception_that_takes_no_such_arguments_is_not_made(args: bytes) -> None:
    told = worker_pb2.ToldException(
        builtin=worker_pb2.BuiltinException(name="UnicodeDecodeError", args=args)
    )
    assert decode_exception(told) is None


@pytest.mark.parametrize("code", [0, 777])
def test_a_status_of_no_known_error_is_an_error_all_the_same(code: int) -> None:
    status = RecordedStatus(code=code, message="so", detail=ErrorDetail(error="os.system"))
    assert type(decode_exception(worker_pb2.ToldException(status=status))) is StratagemError

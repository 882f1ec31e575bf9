"""Decoders of what comes over a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import torch
from google.protobuf.message import DecodeError

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.v1.tensor_pb2 import EncodingKind, TensorSpec
from stratagem_proto.wire import encodings, frames, placed
from stratagem_proto.wire.frames import Frame, split
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of, spec_of
from stratagem_rpc.sockets.frames import (
    FrameKind,
    FrameReader,
    Greeting,
    SocketFrame,
    parts,
    secret_of,
)
from tests.fuzzing.target import MOST_BYTES, Target

_SCRATCH = 256
_LIMIT = 4096

_TENSORS = (torch.ones(3), torch.arange(4), torch.ones(2, 2, dtype=torch.float64))


def _socket_frames(data: bytes) -> Sequence[SocketFrame]:
    """Read frames in pieces whose sizes the first bytes say, and in large ones: both are the same.

    Of what comes together with a malformed frame, nothing is returned.
    """
    pieces, content = data[:4], data[4:]
    found, failed = _read(content, [each + 1 for each in pieces] or [1])
    together, also_failed = _read(content, [_SCRATCH])
    assert failed is also_failed
    known = min(len(found), len(together)) if failed else len(found)
    assert found[:known] == together[:known]
    return found


def _read(content: bytes, sizes: Sequence[int]) -> tuple[Sequence[SocketFrame], bool]:
    reader, found, at, turn = FrameReader(bytearray(_SCRATCH), _LIMIT), list[SocketFrame](), 0, 0
    try:
        while at < len(content):
            room = reader.room
            size = min(sizes[turn % len(sizes)], len(room), len(content) - at)
            room[:size] = content[at : at + size]
            found += [one._replace(message=bytes(one.message)) for one in reader.received(size)]
            at, turn = at + size, turn + 1
    except MalformedStreamError:
        return found, True
    return found, False


def _framed() -> Iterator[bytes]:
    for message in (b"", b"hello", bytes(300)):
        yield b"\x07\x01\xff\x02" + b"".join(parts(FrameKind.CALL, message, True, b"/a.B/C")) * 2


def _greeting(data: bytes) -> None:
    greeting = Greeting(lambda session_id: secret_of(session_id, b"secret of the run"))
    reader = FrameReader(bytearray(4096), 1024)
    reader.room[: len(data[:4096])] = data[:4096]
    for frame in reader.received(len(data[:4096])):
        greeting.answer(frame)
    assert not greeting.is_over, "somebody has guessed a secret"


def _greeted() -> Iterator[bytes]:
    asking = b"".join(parts(FrameKind.HELLO, bytes(48), True))
    yield asking
    yield asking + b"".join(parts(FrameKind.HELLO, bytes(32), True))


def _stream_frames(data: bytes) -> None:
    """Decode a frame by both ways: as a small one, and as a large one without copies."""
    small, large = (_frame_of(data, decode) for decode in _WAYS)
    # Protobuf takes some bytes that nobody writes, such as groups, and says "merge" of two headers.
    assert small is None or large is None or len(large.chunks) == len(small.chunks)


_Way: TypeAlias = Callable[..., Frame[UpdateHeader]]
_WAYS: Sequence[_Way] = (frames._decode_small, frames._decode_large)


def _frame_of(data: bytes, decode: _Way) -> Frame[UpdateHeader] | None:
    try:
        return decode(data, UpdateHeader, None)
    except (DecodeError, IndexError, MalformedStreamError):
        return None


def _streamed() -> Iterator[bytes]:
    header = UpdateHeader()
    header.key.sequence = 3
    for frame in split(header, _TENSORS, 16):
        yield frames.encode_frame(frame)


def _placed_layouts(data: bytes) -> None:
    layout = placed.layout_of(placed.kinds_of(_TENSORS))
    found = placed.announced_places(layout, data)
    assert found is None or 0 <= found.start < found.stop <= len(_TENSORS)


def _announced() -> Iterator[bytes]:
    yield placed.layout_of(placed.kinds_of(_TENSORS)).announcement


def _encodings(data: bytes) -> None:
    """Decode a tensor whose description, elements and companion the bytes are."""
    if len(data) < 2:
        return
    kind, size, rest = data[0] % 8, data[1] % 32, data[2:]
    try:
        specs = [TensorSpec.FromString(rest[i * size : (i + 1) * size]) for i in range(3)]
    except DecodeError:
        return
    if any(nbytes_of(spec) > MOST_BYTES for spec in specs):
        return
    described, tensor, companion = specs[0], *(_filled(one, rest[3 * size :]) for one in specs[1:])
    encoded = encodings.Encoded(cast(EncodingKind, kind), described, tensor, companion)
    decoded = encodings.decode(encoded)
    assert decoded.dtype == decode_dtype(described.dtype)
    assert [*decoded.shape] == [*described.shape]


def _filled(spec: TensorSpec, data: bytes) -> torch.Tensor:
    dtype, nbytes = decode_dtype(spec.dtype), nbytes_of(spec)
    content = bytearray((data * (nbytes // max(1, len(data)) + 1) + bytes(nbytes))[:nbytes])
    if not nbytes:
        return torch.empty(tuple(spec.shape), dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(tuple(spec.shape))


def _encoded() -> Iterator[bytes]:
    value = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    for made in (
        encodings.narrow(value, torch.float16),
        encodings.quantize(value, by_row=True),
        encodings.pack(value, by_row=True),
        encodings.select(value, 2),
    ):
        companion = made.tensor if made.companion is None else made.companion
        specs = [made.decoded, spec_of(made.tensor), spec_of(companion)]
        described = [spec.SerializeToString().ljust(8, b"\0") for spec in specs]
        yield bytes([made.kind, 8]) + b"".join(described) + made.tensor.numpy().tobytes()


TARGETS: Mapping[str, Target] = {
    "socket-frames": Target(_socket_frames, _framed),
    "greeting": Target(_greeting, _greeted),
    "stream-frames": Target(_stream_frames, _streamed),
    "placed-layouts": Target(_placed_layouts, _announced),
    "encodings": Target(_encodings, _encoded),
}

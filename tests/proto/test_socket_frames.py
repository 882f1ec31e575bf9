"""Frames of sockets, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.sockets.frames import FrameKind, FrameReader, SocketFrame, prefix
from stratagem_proto.wire.channel import MESSAGE_BYTES

messages = st.binary(max_size=300)
frames = st.builds(
    SocketFrame,
    st.sampled_from([int(kind) for kind in FrameKind]),
    st.booleans(),
    messages,
    st.binary(max_size=20),
)


def encoded(frame: SocketFrame) -> bytes:
    kind, size = FrameKind(frame.kind), len(frame.message)
    begin = prefix(kind, size, frame.is_last, frame.path)
    return begin + frame.message


def read(reader: FrameReader, data: bytes, pieces: list[int]) -> list[SocketFrame]:
    """What a reader makes of data that come in pieces of these sizes, in turn."""
    found = list[SocketFrame]()
    while data:
        piece = pieces.pop(0) if pieces else len(data)
        size = min(piece, len(reader.room), len(data))
        reader.room[:size] = data[:size]
        found += reader.received(size)
        data = data[size:]
    return [frame._replace(message=bytes(frame.message)) for frame in found]


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 99)))
def test_frames_come_out_as_they_went_in_wherever_they_are_cut(
    sent: list[SocketFrame], pieces: list[int]
) -> None:
    data = b"".join(map(encoded, sent))
    # Some of the frames have no room in what small ones are read into.
    assert read(FrameReader(bytearray(64)), data, pieces) == sent


LONG_PATH = SocketFrame(FrameKind.CALL, True, b"", b"/" * 33)


def test_a_message_that_is_too_large_is_refused_before_its_memory_is_taken() -> None:
    reader = FrameReader(bytearray(64), limit=32)
    with pytest.raises(MalformedStreamError, match="4294967295 bytes"):
        read(reader, prefix(FrameKind.CALL, 2**32 - 1, True), [])
    with pytest.raises(MalformedStreamError, match="a path of 33"):
        read(FrameReader(bytearray(64), limit=32), encoded(LONG_PATH), [])
    admitted = FrameReader(bytearray(64), limit=32)
    admitted.admit()
    with pytest.raises(MalformedStreamError, match=str(MESSAGE_BYTES)):
        read(admitted, prefix(FrameKind.CALL, MESSAGE_BYTES + 1, True), [])

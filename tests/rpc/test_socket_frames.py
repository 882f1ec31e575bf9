"""Frames of sockets, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import MalformedStreamError
from stratagem_rpc.channel import MESSAGE_BYTES
from stratagem_rpc.sockets import frames as socket_frames
from stratagem_rpc.sockets.frames import FrameKind, FrameReader, SocketFrame, prefix

messages = st.binary(max_size=300)
frames = st.builds(
    SocketFrame,
    st.sampled_from([int(kind) for kind in FrameKind]),
    st.booleans(),
    messages,
    st.binary(max_size=20),
    st.just(0),
)


def encoded(frame: SocketFrame) -> bytes:
    kind, size = FrameKind(frame.kind), len(frame.message)
    begin = prefix(kind, size, frame.is_last, frame.path)
    return begin + frame.message


def read(reader: FrameReader, data: bytes, pieces: list[int]) -> list[SocketFrame]:
    """What a reader makes of data that come in pieces of these sizes, in turn."""
    found = list[SocketFrame]()
    while data:
        while reader.lacks_memory:
            assert not reader.room
            reader.proceed()
        piece = pieces.pop(0) if pieces else len(data)
        size = min(piece, len(reader.room), len(data))
        reader.room[:size] = data[:size]
        found += reader.received(size)
        data = data[size:]
    return found


def contents(found: list[SocketFrame]) -> list[SocketFrame]:
    return [frame._replace(message=bytes(frame.message), taken=0) for frame in found]


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 99)))
def test_frames_come_out_as_they_went_in_wherever_they_are_cut(
    sent: list[SocketFrame], pieces: list[int]
) -> None:
    data = b"".join(map(encoded, sent))
    # Some of the frames have no room in what small ones are read into.
    assert contents(read(FrameReader(bytearray(64)), data, pieces)) == sent


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 99)), st.lists(st.booleans()))
def test_memory_is_taken_as_bytes_come_and_waited_for(
    sent: list[SocketFrame], pieces: list[int], refusals: list[bool]
) -> None:
    taken = 0

    def take(nbytes: int) -> bool:
        nonlocal taken
        if refusals and refusals.pop():
            return False
        taken += nbytes
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket_frames, "_FIRST_BYTES", 80)
        patched.setattr(socket_frames, "_REST_BYTES", 8)
        found = read(FrameReader(bytearray(64), take=take), b"".join(map(encoded, sent)), pieces)
    assert contents(found) == sent
    assert sum(frame.taken for frame in found) == taken
    # What is not counted has come in one piece.
    assert all(frame.taken or len(encoded(frame)) <= 64 + 8 for frame in found)


def test_what_is_announced_takes_no_memory_before_it_comes() -> None:
    taken = list[int]()

    def take(nbytes: int) -> bool:
        taken.append(nbytes)
        return True

    reader = FrameReader(bytearray(64 << 10), take=take)
    data = prefix(FrameKind.CALL, 32 << 20, True) + bytes(5_000)
    assert read(reader, data, []) == []
    first = socket_frames._FIRST_BYTES
    assert (sum(taken), reader.is_partial) == (first, True)
    assert read(reader, bytes(first), []) == []
    assert sum(taken) == 4 * first


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

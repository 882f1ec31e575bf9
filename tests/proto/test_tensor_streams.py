"""Tensors survive the wire, and the wire is what the .proto files say."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    MalformedStreamError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import Chunk, Place, TensorSpec
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    AssignRequest,
    CreateVariablesHeader,
    CreateVariablesRequest,
)
from stratagem_proto.wire import frames, segment, tensors
from stratagem_proto.wire.frames import ChunkView, Frame
from stratagem_proto.wire.placed import decode_whole, kinds_of, layout_of

HEADERS_AND_MESSAGES = [
    (CreateVariablesHeader, CreateVariablesRequest),
    (AssignHeader, AssignRequest),
    (pb.UpdateHeader, pb.UpdateRequest),
    (pb.UpdateHeader, pb.UpdateNonSlotRequest),
    (pb.ReadHeader, pb.ReadResponse),
]

shapes = st.lists(st.integers(0, 7), max_size=4)
SEGMENT, _FD = segment.create(600)
os.close(_FD)

carried = st.builds(
    ChunkView,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300).map(memoryview),
    st.none(),
)
placed = st.builds(
    lambda start, nbytes: ChunkView(1, 2, SEGMENT.view(start, nbytes), start),
    st.sampled_from([0, 64, 256]),
    st.integers(0, 300),
)
chunks = st.lists(carried | placed, max_size=5)


def tensor_of(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    numbers = torch.arange(-3, -3 + max(1, torch.Size(shape).numel()))
    return numbers[: torch.Size(shape).numel()].reshape(shape).to(dtype)


def receive(stream: list[bytes]) -> list[torch.Tensor]:
    decoded = [frames.decode_frame(data, pb.UpdateHeader) for data in stream]
    assert decoded[0].header is not None
    assembler = frames.Assembler(decoded[0].header.tensors)
    for frame in decoded:
        assembler.add(frame.chunks)
    return assembler.finish()


@pytest.mark.parametrize("dtype", tensors.DTYPES.values(), ids=str)
@given(some_shapes=st.lists(shapes, max_size=4), chunk_bytes=st.integers(1, 40))
def test_tensors_of_every_dtype_arrive_as_they_were_sent(
    dtype: torch.dtype, some_shapes: list[list[int]], chunk_bytes: int
) -> None:
    sent = [tensor_of(dtype, shape) for shape in some_shapes]
    header = pb.UpdateHeader(tensors=[tensors.spec_of(tensor) for tensor in sent])
    stream = [frames.encode_frame(f) for f in frames.split(header, sent, chunk_bytes)]
    received = receive(stream)
    assert [t.dtype for t in received] == [t.dtype for t in sent]
    assert all(torch.equal(a, b) for a, b in zip(received, sent, strict=True))


@pytest.mark.parametrize(("header_type", "message_type"), HEADERS_AND_MESSAGES)
@given(some_chunks=chunks)
def test_frames_are_the_bytes_that_protobuf_writes(
    header_type: Any, message_type: Any, some_chunks: list[ChunkView]
) -> None:
    """Any protobuf implementation reads our frames, and we read its messages."""
    message = message_type(
        header=header_type(),
        chunks=[
            Chunk(
                tensor=c.tensor,
                offset=c.offset,
                data=bytes(c.data) if c.start is None else b"",
                place=None if c.start is None else Place(start=c.start, nbytes=len(c.data)),
            )
            for c in some_chunks
        ],
    )
    encoded = frames.encode_frame(Frame(header_type(), some_chunks))
    assert message_type.FromString(encoded) == message
    decoded = frames.decode_frame(message.SerializeToString(), header_type, SEGMENT)
    assert decoded == Frame(header_type(), some_chunks)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_frame_or_a_malformed_stream(data: bytes) -> None:
    try:
        frames.decode_frame(data, pb.UpdateHeader)
    except MalformedStreamError as error:
        assert "UpdateHeader" in str(error)


def test_fields_of_a_later_release_are_skipped() -> None:
    unknown = b"\x98\x06\x05" + b"\x9a\x06\x02ab" + b"\x9d\x06abcd" + b"\x99\x06" + b"8" * 8
    known = frames.encode_frame(Frame(pb.UpdateHeader(), [ChunkView(1, 2, memoryview(b"x"))]))
    decoded = frames.decode_frame(unknown + known, pb.UpdateHeader)
    assert decoded.chunks == [ChunkView(1, 2, memoryview(b"x"))]


@pytest.mark.parametrize(
    ("chunk", "complaint"),
    [
        (ChunkView(1, 0, memoryview(b"1234")), "tensor 1 of 1"),
        (ChunkView(0, 4, memoryview(b"1234")), "byte 0 comes next"),
        (ChunkView(0, 0, memoryview(b"123456789")), "the tensor has 8"),
    ],
)
def test_a_misplaced_chunk_is_named(chunk: ChunkView, complaint: str) -> None:
    assembler = frames.Assembler([tensors.spec_of(torch.zeros(2))])
    with pytest.raises(MalformedStreamError, match=complaint):
        assembler.add([chunk])


def test_a_truncated_stream_says_how_far_it_came() -> None:
    assembler = frames.Assembler([tensors.spec_of(torch.zeros(2))])
    assembler.add([ChunkView(0, 0, memoryview(b"1234"))])
    with pytest.raises(MalformedStreamError, match="4 of 8 bytes of tensor 0"):
        assembler.finish()


def test_bytes_can_be_received_in_place() -> None:
    destination = torch.zeros(2, dtype=torch.int32)
    assembler = frames.Assembler([tensors.spec_of(destination)], [destination])
    assembler.add([ChunkView(0, 0, tensors.as_bytes(torch.tensor([5, 6]).int()))])
    assert destination.tolist() == [5, 6]


def test_a_view_of_conjugated_numbers_is_resolved() -> None:
    tensor = torch.tensor([1 + 2j]).conj()
    assert bytes(tensors.as_bytes(tensor)) == bytes(tensors.as_bytes(tensor.clone()))


def test_small_tensors_share_a_frame_and_large_ones_are_split() -> None:
    sent = [torch.zeros(10), torch.zeros(10), torch.zeros(1000)]
    header = pb.UpdateHeader(tensors=[tensors.spec_of(tensor) for tensor in sent])
    sizes = [len(frame.chunks) for frame in frames.split(header, sent, 1024)]
    assert sizes == [2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (TensorSpec(), "no data type number 0"),
        (TensorSpec(dtype=tensors.encode_dtype(torch.float32), shape=[-1]), "negative"),
        (
            TensorSpec(dtype=tensors.encode_dtype(torch.float32), shape=[1] * 33),
            "33 dim",
        ),
        (
            TensorSpec(dtype=tensors.encode_dtype(torch.float32), shape=[2**62]),
            "2\\^63",
        ),
    ],
)
def test_an_impossible_description_is_refused(spec: TensorSpec, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        tensors.nbytes_of(spec)


def test_a_tensor_without_a_wire_type_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"complex32 cannot be sent"):
        tensors.spec_of_kind(torch.complex32, torch.Size([1]))


@pytest.mark.parametrize("dtype", tensors.DTYPES.values(), ids=str)
@pytest.mark.parametrize("elements", [5, 300_000])
def test_tensors_of_one_message_are_taken_out_of_it(dtype: torch.dtype, elements: int) -> None:
    sent = [tensor_of(torch.bool, [3, 1]), tensor_of(dtype, [elements])]
    header = pb.UpdateHeader(tensors=map(tensors.spec_of, sent))
    (frame,) = frames.split(header, sent, 8 << 20)
    chunks = frames.decode_frame(frames.encode_frame(frame), pb.UpdateHeader).chunks
    taken = frames.whole_tensors(list(header.tensors), chunks)
    assert taken is not None
    for one, other in zip(taken, sent, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_large_tensor_stays_where_its_message_is() -> None:
    sent = torch.arange(300_000.0)
    message = memoryview(bytearray(b"?") + tensors.as_bytes(sent))[1:]
    (taken,) = frames.whole_tensors([tensors.spec_of(sent)], [ChunkView(0, 0, message)]) or [sent]
    message[:4] = tensors.as_bytes(torch.tensor(7.0))
    assert taken[0] == 7


def test_a_tensor_that_has_not_come_in_one_chunk_is_not_whole() -> None:
    sent = torch.zeros(3)
    data = tensors.as_bytes(sent)
    for chunks in ([], [ChunkView(0, 0, data[:8])], [ChunkView(1, 0, data)]):
        assert frames.whole_tensors([tensors.spec_of(sent)], chunks) is None


@pytest.mark.parametrize("dtype", tensors.DTYPES.values(), ids=str)
@given(some_shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4))
def test_a_small_request_is_the_only_frame_of_a_split_and_is_taken_apart_at_once(
    dtype: torch.dtype, some_shapes: list[list[int]]
) -> None:
    sent = [tensor_of(dtype, shape) for shape in some_shapes]
    header = pb.UpdateHeader(tensors=map(tensors.spec_of, sent))
    (frame,) = frames.split(header, sent, 8 << 20)
    message = frames.encode_at_once(header.SerializeToString(), sent)
    assert message == frames.encode_frame(frame)
    taken = frames.take_header(message, pb.UpdateHeader)
    assert taken is not None
    layout = layout_of(kinds_of(sent))
    received = decode_whole(taken[1], layout)
    assert received is not None
    filled = [sent[number] for number, *_ in layout.places]
    assert [one.dtype for one in received] == [one.dtype for one in filled]
    assert all(map(torch.equal, received, filled))


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [Chunk(tensor=0, data=bytes(8))],
        [Chunk(tensor=0, data=bytes(4)), Chunk(tensor=0, data=bytes(8))],
        [Chunk(tensor=0, data=bytes(4)), Chunk(tensor=1, data=bytes(4))],
        [Chunk(tensor=0, data=bytes(4)), Chunk(tensor=1, offset=4, data=bytes(8))],
        [Chunk(tensor=0, data=bytes(4)), Chunk(tensor=1, place=Place(start=0, nbytes=8))],
        [Chunk(tensor=1, data=bytes(8)), Chunk(tensor=0, data=bytes(4))],
        [Chunk(tensor=0, data=bytes(4)), Chunk(tensor=1, data=bytes(8)), Chunk(tensor=2)],
    ],
    ids=str,
)
def test_chunks_that_are_not_one_for_each_tensor_are_left_to_others(chunks: list[Chunk]) -> None:
    layout = layout_of(((torch.float32, torch.Size([1])), (torch.float32, torch.Size([2]))))
    data = pb.UpdateRequest(chunks=chunks).SerializeToString()
    assert decode_whole(data, layout) is None

"""Tensors in memory that both ends share arrive as they were placed."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.tensor_pb2 import Chunk, Place
from stratagem_proto.wire import segment, tensors
from stratagem_proto.wire.frames import Frame, decode_frame, encode_frame, take_header
from stratagem_proto.wire.placed import (
    SegmentLayout,
    announced_places,
    encode_filled,
    encode_placed,
    kinds_described,
    kinds_of,
    layout_of,
    tensors_in_segment,
)

COMPLEX = torch.tensor([1 + 2j, 3 - 4j])
GROUPS = {
    "of every dtype": [torch.ones(3).to(dtype) for dtype in tensors.DTYPES.values()],
    "scalars and nothing": [torch.tensor(2.0), torch.empty(0, 4), torch.tensor(3)],
    "not contiguous": [torch.arange(6.0).reshape(2, 3).T, torch.ones(4)[::2]],
    "conjugated": [COMPLEX.conj(), COMPLEX.conj().imag],
    "followed by autograd": [torch.ones(2, requires_grad=True) * 2],
    "no tensors": [],
}


def shared(nbytes: int) -> segment.Segment:
    made, fd = segment.create(nbytes)
    os.close(fd)
    return made


def sent(values: list[torch.Tensor], memory: segment.Segment) -> Frame[pb.UpdateHeader]:
    header = pb.UpdateHeader(tensors=[tensors.spec_of(value) for value in values])
    data = encode_placed(header.SerializeToString(), values, memory)
    return decode_frame(data, pb.UpdateHeader, memory)


def arrived(frame: Frame[pb.UpdateHeader], memory: segment.Segment) -> list[torch.Tensor] | None:
    assert frame.header is not None
    layout = layout_of(kinds_described(frame.header.tensors))
    chunks = encode_frame(Frame(chunks=frame.chunks))
    if chunks and announced_places(layout, chunks) != range(len(layout.places)):
        return None
    return memory.tensors(layout.kinds)


@pytest.mark.parametrize("values", GROUPS.values(), ids=GROUPS)
def test_tensors_are_found_where_they_were_placed(values: list[torch.Tensor]) -> None:
    memory = shared(max(1, layout_of(kinds_of(values)).room))
    for _ in range(2):
        found = arrived(sent(values, memory), memory)
        assert found is not None
        assert len(found) == len(values)
        assert all(map(torch.equal, found, values))


def test_a_frame_is_what_protobuf_would_write() -> None:
    memory, values = shared(4096), [torch.ones(5), torch.empty(0), torch.ones(3, 3)]
    frame = sent(values, memory)
    assert frame.header is not None
    header = frame.header.SerializeToString()
    assert encode_placed(header, values, memory) == encode_frame(frame)
    assert [(chunk.tensor, chunk.start) for chunk in frame.chunks] == [(0, 0), (2, 64)]


def test_other_tensors_of_as_many_bytes_are_not_taken_for_them() -> None:
    memory = shared(4096)
    ones, numbers = torch.ones(2, 3), torch.arange(6, dtype=torch.int32)
    for values in ([ones], [numbers], [ones.reshape(3, 2)], [ones]):
        found = arrived(sent(values, memory), memory)
        assert found is not None
        assert torch.equal(found[0], values[0])
        assert found[0].dtype == values[0].dtype


def test_tensors_elsewhere_in_the_segment_are_left_to_others() -> None:
    memory = shared(4096)
    frame = sent([torch.ones(3), torch.ones(3)], memory)
    first, second = frame.chunks
    for chunks in (
        [first],
        [first, second._replace(start=128)],
        [first, second._replace(start=None)],
        [first, second._replace(offset=4)],
        [second, first],
        [first, second, second],
    ):
        assert arrived(Frame(frame.header, list(chunks)), memory) is None


def test_views_made_in_inference_can_be_written_outside_of_it() -> None:
    memory = shared(4096)
    with torch.inference_mode():
        sent([torch.ones(3)], memory)
    found = arrived(sent([torch.zeros(3)], memory), memory)
    assert found is not None
    assert found[0].eq(0).all()


def test_a_segment_keeps_no_views_of_all_that_it_ever_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "_MOST_VIEWS", 50)
    memory = shared(4096)
    for size in range(1, 200):
        found = arrived(sent([torch.full([size], float(size))], memory), memory)
        assert found is not None
        assert found[0].eq(size).all()
    assert 0 < len(memory._kept) <= 25


def test_views_of_many_tensors_are_kept_by_turns_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "_MOST_VIEWS", 50)
    memory, many = shared(1 << 16), [torch.ones(1)] * 20
    for size in range(1, 40):
        memory.tensors(kinds_of([*many, torch.ones(size)]))
        assert len(memory._kept) <= 16


def test_views_of_any_number_of_rows_are_kept() -> None:
    memory = shared(4096)
    first = memory.tensors(kinds_of([torch.ones(1)]))
    for size in range(2, 200):
        memory.tensors(kinds_of([torch.ones(size)]))
    assert memory.tensors(kinds_of([torch.ones(1)])) is first


def test_tensors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MalformedStreamError, match="it has 64"):
        sent([torch.ones(17)], shared(64))


def described(values: list[torch.Tensor]) -> SegmentLayout:
    return layout_of(kinds_of(values))


def chunks_of(values: list[torch.Tensor], memory: segment.Segment) -> memoryview:
    """What follows the header of the frame that says where tensors are."""
    data = encode_placed(b"", values, memory)
    begun = take_header(data, pb.UpdateHeader)
    assert begun is not None
    return begun[1]


def test_a_server_steps_by_what_lies_in_the_memory_of_its_client() -> None:
    memory, values = shared(4096), [torch.ones(5), torch.empty(0), torch.arange(3)]
    lying = tensors_in_segment(described(values), chunks_of(values, memory), memory)
    assert lying is not None
    gradient, _, rows = lying
    values[0] += 1
    values[2] += 1
    chunks_of(values, memory)
    assert gradient.tolist() == [2.0] * 5
    # They were checked, so they are no longer the client's.
    assert rows.tolist() == [0, 1, 2]


def test_what_lies_anywhere_else_is_not_found() -> None:
    memory, values = shared(4096), [torch.ones(5), torch.ones(3)]
    chunks = chunks_of(values, memory)
    assert tensors_in_segment(described(values[::-1]), chunks, memory) is None
    assert tensors_in_segment(described(values[:1]), chunks, memory) is None
    assert tensors_in_segment(described(values), chunks[:-1], memory) is None


def test_tensors_that_do_not_fit_into_a_segment_are_refused() -> None:
    values = [torch.ones(2000)]
    chunks = chunks_of(values, shared(8192))
    with pytest.raises(MalformedStreamError, match="it has 4096"):
        tensors_in_segment(described(values), chunks, shared(4096))


def test_what_is_made_in_a_segment_is_announced_like_what_is_copied_there() -> None:
    memory, values = shared(4096), [torch.ones(5), torch.ones(3, 3)]
    header = pb.UpdateHeader()

    def fill(into: Sequence[torch.Tensor]) -> None:
        for tensor, value in zip(into, values, strict=True):
            tensor.copy_(value)

    made = encode_filled(header, described(values), fill, memory)
    assert made == encode_placed(header.SerializeToString(), values, memory)


def test_a_header_is_taken_off_its_frame() -> None:
    header = pb.UpdateHeader(nonfinite_variable="w" * 200)
    data = encode_frame(Frame(header)) + b"rest"
    begun = take_header(data, pb.UpdateHeader)
    assert begun is not None
    assert begun[0] == header
    assert bytes(begun[1]) == b"rest"
    assert take_header(b"", pb.UpdateHeader) is None
    assert take_header(b"\x12\x00", pb.UpdateHeader) is None


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x80", b"\x0a\x05ab", b"\x0a\x01\xff"])
def test_a_header_that_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedStreamError, match="not a UpdateHeader stream's"):
        take_header(data, pb.UpdateHeader)


def test_of_a_great_many_tensors_nothing_is_kept() -> None:
    few = ((torch.float32, torch.Size([1])),)
    assert layout_of(few) is layout_of(few)
    lots = few * (segment.MOST_KEPT_KINDS + 1)
    assert layout_of(lots) is not layout_of(lots)
    assert layout_of(lots).announcement == layout_of(lots).announcement
    memory = shared(layout_of(lots).room)
    assert memory.tensors(few) is memory.tensors(few)
    assert memory.tensors(lots) is not memory.tensors(lots)


def test_values_that_are_announced_by_runs_are_known_by_their_places() -> None:
    layout = described([torch.ones(3), torch.ones(0), torch.ones(5), torch.ones(2)])
    for run in (range(1), range(1, 3), range(3)):
        chunks = [
            Chunk(tensor=number, offset=offset, place=Place(start=start, nbytes=size))
            for number, offset, size, start in layout.places[run.start : run.stop]
        ]
        said = tensor_pb2.Frame(chunks=chunks)
        assert announced_places(layout, said.SerializeToString()) == run
        said.header = b"another"
        assert announced_places(layout, said.SerializeToString()) is None
    assert announced_places(layout, b"") is None
    assert announced_places(layout, b"no frame") is None

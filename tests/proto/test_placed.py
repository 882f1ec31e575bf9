"""Tensors in memory that both ends share arrive as they were placed."""

from __future__ import annotations

import os

import pytest
import torch

from stratagem_proto import segment, tensors
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.frames import Frame, decode_frame, encode_frame
from stratagem_proto.placed import encode_placed, lent, needed
from stratagem_proto.v1 import parameter_server_pb2 as pb

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
    data = encode_placed(header, values, memory)
    return decode_frame(data, pb.UpdateHeader, memory)


def arrived(
    frame: Frame[pb.UpdateHeader], memory: segment.Segment
) -> list[torch.Tensor] | None:
    assert frame.header is not None
    return lent(frame.header.tensors, frame.chunks, memory)


@pytest.mark.parametrize("values", GROUPS.values(), ids=GROUPS)
def test_tensors_are_found_where_they_were_placed(values: list[torch.Tensor]) -> None:
    memory = shared(max(1, needed(values)))
    for _ in range(2):
        found = arrived(sent(values, memory), memory)
        assert found is not None
        assert len(found) == len(values)
        assert all(map(torch.equal, found, values))


def test_a_frame_is_what_protobuf_would_write() -> None:
    memory, values = shared(4096), [torch.ones(5), torch.empty(0), torch.ones(3, 3)]
    frame = sent(values, memory)
    assert frame.header is not None
    assert encode_placed(frame.header, values, memory) == encode_frame(frame)
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


def test_a_segment_keeps_no_views_of_all_that_it_ever_had() -> None:
    memory = shared(4096)
    for size in range(1, 200):
        found = arrived(sent([torch.full([size], float(size))], memory), memory)
        assert found is not None
        assert found[0].eq(size).all()
    assert len(memory._kept) < 20


def test_tensors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MalformedStreamError, match="it has 64"):
        sent([torch.ones(17)], shared(64))

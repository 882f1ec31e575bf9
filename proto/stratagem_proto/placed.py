"""Tensors of a stream whose bytes are in memory that both ends share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from google.protobuf.message import Message

from stratagem_proto.codec import copy_bytes, split
from stratagem_proto.frames import ChunkView, Frame, Header, encode_frame
from stratagem_proto.segment import Kind, Segment, starts
from stratagem_proto.tensors import decode_dtype, nbytes_of
from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.tensor_pb2 import Chunk, Place, TensorSpec


def needed(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of a segment that tensors take."""
    return starts([tensor.nbytes for tensor in tensors])[1]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where tensors of some kinds are in a segment.

    Attributes:
        kinds: What they are.
        room: Bytes of a segment that they take.
        announcement: The part of a frame that says where they are.
    """

    kinds: tuple[Kind, ...]
    room: int
    announcement: bytes


# The same tensors are sent and read with each step.
@lru_cache(maxsize=256)
def layout_of(kinds: tuple[Kind, ...]) -> Layout:
    """Where tensors of these kinds are if that is where `starts` puts them."""
    sizes = tuple([dtype.itemsize * shape.numel() for dtype, shape in kinds])
    return Layout(kinds, starts(sizes)[1], _announcement(sizes))


def _kinds(tensors: Sequence[torch.Tensor]) -> tuple[Kind, ...]:
    """What tensors are besides their elements."""
    return tuple([(tensor.dtype, tensor.shape) for tensor in tensors])


def encode_placed(
    header: Message, tensors: Sequence[torch.Tensor], segment: Segment
) -> bytes:
    """Copies tensors to a segment; returns the frame that says where they are.

    Args:
        header: Of the frame.
        tensors: On any device, contiguous or not.
        segment: Large enough for all that `needed` says.
    """
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(segment.tensors(_kinds(tensors)), [*tensors])
    return encode_frame(Frame(header)) + _announcement(_sizes(tensors))


def lent(
    specs: Sequence[TensorSpec], chunks: Sequence[ChunkView], segment: Segment
) -> list[torch.Tensor] | None:
    """The tensors of an answer where they are, if that is where `starts` puts them.

    They are to be used before the segment is, again.

    Args:
        specs: From the header.
        chunks: All that came with the header.
        segment: That of the call.

    Raises:
        MalformedStreamError: The segment is too small for the tensors.
    """
    places = _places(tuple(map(nbytes_of, specs)))
    if [(c.tensor, c.offset, len(c.data), c.start) for c in chunks] != places:
        return None
    return segment.tensors(
        tuple([(decode_dtype(spec.dtype), torch.Size(spec.shape)) for spec in specs])
    )


def _sizes(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple([tensor.nbytes for tensor in tensors])


# The same places are named with each step, here and in the next function.
@lru_cache(maxsize=256)
def _places(sizes: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Number, offset, bytes and start of the chunks of tensors of these sizes."""
    each = enumerate(zip(sizes, starts(sizes)[0], strict=True))
    return [(number, 0, size, start) for number, (size, start) in each if size]


@lru_cache(maxsize=256)
def _announcement(sizes: tuple[int, ...]) -> bytes:
    """The part of a frame that says where tensors of these sizes are."""
    chunks = [
        Chunk(tensor=number, place=Place(start=start, nbytes=size))
        for number, _, size, start in _places(sizes)
    ]
    return tensor_pb2.Frame(chunks=chunks).SerializeToString()


def place_by_runs(
    header: Header, tensors: Sequence[torch.Tensor], segment: Segment, run_bytes: int
) -> Iterator[Frame[Header]]:
    """Copies tensors to a segment run by run; the frames that say where they are.

    A run is copied when its frame is asked for, so that who reads can take those of
    one frame while those of the next are copied.

    Args:
        header: Of the first frame.
        tensors: What to place.
        segment: Where, which must be large enough.
        run_bytes: Most bytes of one frame.
    """
    places, _ = starts([tensor.nbytes for tensor in tensors])
    for frame in split(header, tensors, run_bytes):
        chunks = [_placed(each, places[each.tensor], segment) for each in frame.chunks]
        yield Frame(frame.header, chunks)


def _placed(chunk: ChunkView, place: int, segment: Segment) -> ChunkView:
    start = place + chunk.offset
    view = segment.view(start, len(chunk.data))
    copy_bytes(view, chunk.data)
    return chunk._replace(data=view, start=start)


def encode_filled(
    header: Message,
    layout: Layout,
    fill: Callable[[Sequence[torch.Tensor]], object],
    segment: Segment,
) -> bytes:
    """As `encode_placed`, of tensors that are only made where they are placed.

    Args:
        header: Of the frame.
        layout: Of the tensors.
        fill: Given the tensors, writes their elements.
        segment: Large enough for all of them.
    """
    fill(segment.tensors(layout.kinds))
    return encode_frame(Frame(header)) + layout.announcement


def found(
    layout: Layout, chunks: memoryview, segment: Segment
) -> list[torch.Tensor] | None:
    """The tensors of a request where they are; None if that is not where they lie.

    Who made the segment can still write to it, so only floating-point elements are
    left there: indices that were checked must not change. The tensors are to be used
    until the request is answered.

    Args:
        layout: Of the tensors.
        chunks: The part of the frame that says where they are.
        segment: That of the call.

    Raises:
        MalformedStreamError: The segment is too small for the tensors.
    """
    announced = layout.announcement
    if len(chunks) != len(announced) or bytes(chunks) != announced:
        return None
    return [
        tensor if tensor.is_floating_point() else tensor.clone()
        for tensor in segment.tensors(layout.kinds)
    ]

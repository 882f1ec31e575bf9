"""Tensors of a stream whose bytes are in memory that both ends share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from google.protobuf.message import DecodeError, Message

from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.tensor_pb2 import Chunk, Place, TensorSpec
from stratagem_proto.wire.codec import copy_bytes, split
from stratagem_proto.wire.frames import ChunkView, Frame, Header, encode_header
from stratagem_proto.wire.segment import MOST_KEPT_KINDS, Kind, Segment, starts
from stratagem_proto.wire.tensors import decode_dtype


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """Where tensors of some kinds are in a segment.

    Attributes:
        kinds: What they are.
        nbytes: Of all of their elements.
        room: Bytes of a segment that they take.
        places: Number, offset, bytes and start of the chunks that say where they are.
    """

    kinds: tuple[Kind, ...]
    nbytes: int
    room: int
    places: Sequence[tuple[int, int, int, int]]

    @cached_property
    def announcement(self) -> bytes:
        """The part of a frame that says where they are."""
        chunks = [
            Chunk(tensor=number, place=Place(start=start, nbytes=size))
            for number, _, size, start in self.places
        ]
        return tensor_pb2.Frame(chunks=chunks).SerializeToString()


def layout_of(kinds: tuple[Kind, ...]) -> SegmentLayout:
    """Return where tensors of these kinds are if that is where `starts` puts them."""
    if len(kinds) <= _FEW_KINDS:
        return _layout_of_few(kinds)
    return (_kept_layout if len(kinds) <= MOST_KEPT_KINDS else _layout)(kinds)


def _layout(kinds: tuple[Kind, ...]) -> SegmentLayout:
    sizes = [dtype.itemsize * shape.numel() for dtype, shape in kinds]
    begins, room = starts(sizes)
    each = enumerate(zip(sizes, begins, strict=True))
    places = [(number, 0, size, begin) for number, (size, begin) in each if size]
    return SegmentLayout(kinds, sum(sizes), room, places)


# The same tensors are sent and read with each step. Whoever names a great many has them looked at
# each time, as a server cannot count what is kept for it.
_kept_layout = lru_cache(maxsize=64)(_layout)

# How many rows are looked up is another number with each step.
_FEW_KINDS = 16
_layout_of_few = lru_cache(maxsize=1024)(_layout)


def kinds_of(tensors: Iterable[torch.Tensor]) -> tuple[Kind, ...]:
    """Return what tensors are besides their elements."""
    return tuple([(tensor.dtype, tensor.shape) for tensor in tensors])


def kinds_described(specs: Iterable[TensorSpec]) -> tuple[Kind, ...]:
    """As `kinds_of`, of described tensors."""
    return tuple([(decode_dtype(s.dtype), torch.Size(s.shape)) for s in specs])


def encode_placed(
    header: bytes,
    tensors: Sequence[torch.Tensor],
    segment: Segment,
    layout: SegmentLayout | None = None,
) -> bytes:
    """Copy tensors to a segment; return the frame that says where they are.

    Args:
        header: Of the frame, encoded.
        tensors: On any device, contiguous or not.
        segment: With room for the layout of these kinds.
        layout: That layout, if it is known.
    """
    layout = layout or layout_of(kinds_of(tensors))
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(segment.tensors(layout.kinds), [*tensors])
    return encode_header(header) + layout.announcement


def announced(layout: SegmentLayout, chunks: bytes | memoryview) -> range | None:
    """Return the places of a layout that a part of a frame says are filled.

    Args:
        layout: The layout.
        chunks: All of the frame but its header.

    Returns:
        Their indices; None if there are none, or if anything else is said.
    """
    if len(chunks) > len(layout.announcement):
        return None
    is_kept = len(layout.kinds) <= MOST_KEPT_KINDS
    return (_kept_announced if is_kept else _announced)(layout, bytes(chunks))


def _announced(layout: SegmentLayout, chunks: bytes) -> range | None:
    try:
        frame = tensor_pb2.Frame.FromString(chunks)
    except DecodeError:
        return None
    said = frame.chunks
    if frame.HasField("header") or not said:
        return None
    first = bisect_left(layout.places, (said[0].tensor,))
    filled = range(first, first + len(said))
    places = [(c.tensor, c.offset, c.place.nbytes, c.place.start) for c in said]
    return filled if places == layout.places[first : filled.stop] else None


_kept_announced = lru_cache(maxsize=256)(_announced)


def place_by_runs(
    header: Header, tensors: Sequence[torch.Tensor], segment: Segment, run_bytes: int
) -> Iterator[Frame[Header]]:
    """Copy tensors to a segment run by run; the frames that say where they are.

    A run is copied when its frame is asked for, so that who reads can take those of one frame while
    those of the next are copied.

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
    layout: SegmentLayout,
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
    return encode_header(header.SerializeToString()) + layout.announcement


def found(layout: SegmentLayout, chunks: memoryview, segment: Segment) -> list[torch.Tensor] | None:
    """Return the tensors of a request in the segment; None if they are not there.

    Who made the segment can still write to it, so only floating-point elements are left there:
    indices that were checked must not change. The tensors are to be used until the request is
    answered.

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

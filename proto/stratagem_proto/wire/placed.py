"""Streams whose tensors are placed in shared memory; their frames only name the places."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from google.protobuf.message import DecodeError, Message

from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.parameter_server_pb2 import ReadContents, ReadValue
from stratagem_proto.v1.tensor_pb2 import Chunk, Place, TensorSpec
from stratagem_proto.wire.frames import ChunkView, Frame, Header, copy_bytes, encode_header, split
from stratagem_proto.wire.segment import MOST_KEPT_KINDS, Kind, Segment, starts
from stratagem_proto.wire.tensors import decode_dtype, spec_of_kind


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """The layout of some tensors in a segment.

    Attributes:
        kinds: The dtypes and shapes of the tensors.
        nbytes: The bytes of all elements.
        room: The bytes of the segment, with the gaps between tensors.
        places: For each tensor with elements: its number, the offset 0, its bytes, and its start in
            the segment.
    """

    kinds: tuple[Kind, ...]
    nbytes: int
    room: int
    places: Sequence[tuple[int, int, int, int]]

    @cached_property
    def announcement(self) -> bytes:
        """The part of a frame that names the places of the tensors."""
        chunks = [
            Chunk(tensor=number, place=Place(start=start, nbytes=size))
            for number, _, size, start in self.places
        ]
        return tensor_pb2.Frame(chunks=chunks).SerializeToString()


def layout_of(kinds: tuple[Kind, ...]) -> SegmentLayout:
    """Return the layout of tensors of these kinds, at the places that `starts` gives."""
    if len(kinds) <= _FEW_KINDS:
        return _layout_of_few(kinds)
    return (_kept_layout if len(kinds) <= MOST_KEPT_KINDS else _layout)(kinds)


def _layout(kinds: tuple[Kind, ...]) -> SegmentLayout:
    sizes = [dtype.itemsize * shape.numel() for dtype, shape in kinds]
    begins, room = starts(sizes)
    each = enumerate(zip(sizes, begins, strict=True))
    places = [(number, 0, size, begin) for number, (size, begin) in each if size]
    return SegmentLayout(kinds, sum(sizes), room, places)


# Each step sends and reads the same tensors. Layouts of a great many tensors are not cached,
# because their memory is not counted in any budget.
_kept_layout = lru_cache(maxsize=64)(_layout)

# There are more layouts of few tensors, since the number of rows differs from step to step.
_FEW_KINDS = 16
_layout_of_few = lru_cache(maxsize=1024)(_layout)


def kinds_of(tensors: Iterable[torch.Tensor]) -> tuple[Kind, ...]:
    """Return the dtypes and shapes of tensors."""
    return tuple([(tensor.dtype, tensor.shape) for tensor in tensors])


def kinds_described(specs: Iterable[TensorSpec]) -> tuple[Kind, ...]:
    """Return the dtypes and shapes of described tensors."""
    return tuple([(decode_dtype(s.dtype), torch.Size(s.shape)) for s in specs])


def encode_placed(
    header: bytes,
    tensors: Sequence[torch.Tensor],
    segment: Segment,
    layout: SegmentLayout | None = None,
) -> bytes:
    """Copy tensors into a segment, and return the frame that names their places.

    Args:
        header: The encoded header of the frame.
        tensors: Tensors on any device, contiguous or not.
        segment: A segment that is large enough for their layout.
        layout: The layout of the tensors, if it is known.
    """
    layout = layout or layout_of(kinds_of(tensors))
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(segment.tensors(layout.kinds), [*tensors])
    return encode_header(header) + layout.announcement


def announced_places(layout: SegmentLayout, chunks: bytes | memoryview) -> range | None:
    """Return which places of a layout the chunks of a frame name, as consecutive indices.

    Args:
        layout: The layout.
        chunks: The encoded frame without its header.

    Returns:
        The indices; None if the frame has no chunks, or other ones than those of the layout.
    """
    if len(chunks) > len(layout.announcement):
        return None
    is_kept = len(layout.kinds) <= MOST_KEPT_KINDS
    return (_kept_announced if is_kept else _announced_places)(layout, bytes(chunks))


def _announced_places(layout: SegmentLayout, chunks: bytes) -> range | None:
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


_kept_announced = lru_cache(maxsize=256)(_announced_places)


# What takes longer to copy than to look for its places in the message.
_MOST_COPIED_BYTES = 16 << 10


def decode_whole(chunks: bytes | memoryview, layout: SegmentLayout) -> list[torch.Tensor] | None:
    """Return tensors that are sent in one frame, each with elements in a chunk of its own.

    Args:
        chunks: The encoded frame without its header; its bytes are copied.
        layout: The layout of the tensors, whose memory it says nothing of here.

    Returns:
        The tensors in the order of the layout's `places`; None if the frame has anything else, or
        is larger than what is worth a copy.
    """
    if len(chunks) > _MOST_COPIED_BYTES:
        return None
    try:
        frame = tensor_pb2.Frame.FromString(bytes(chunks))
    except DecodeError:
        return None
    if frame.HasField("header") or len(frame.chunks) != len(layout.places):
        return None
    tensors = []
    for chunk, (number, _, size, _) in zip(frame.chunks, layout.places, strict=True):
        data = chunk.data
        if chunk.tensor != number or chunk.offset or len(data) != size or chunk.HasField("place"):
            return None
        dtype, shape = layout.kinds[number]
        tensors.append(torch.frombuffer(bytearray(data), dtype=dtype).view(shape))
    return tensors


def place_by_runs(
    header: Header, tensors: Sequence[torch.Tensor], segment: Segment, run_bytes: int
) -> Iterator[Frame[Header]]:
    """Copy tensors into a segment run by run, and yield the frames that name their places.

    A run is copied when its frame is asked for, so the client can read the tensors of one frame
    while those of the next one are copied.

    Args:
        header: The header of the first frame.
        tensors: The tensors.
        segment: A segment that is large enough for all of them.
        run_bytes: The most bytes of the tensors of one frame.
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
    """Have tensors filled in a segment, and return the frame that names their places.

    Args:
        header: The header of the frame.
        layout: The layout of the tensors.
        fill: Writes the elements of the tensors that it is given.
        segment: A segment that is large enough for all of them.
    """
    fill(segment.tensors(layout.kinds))
    return encode_header(header.SerializeToString()) + layout.announcement


def tensors_in_segment(
    layout: SegmentLayout, chunks: memoryview, segment: Segment
) -> list[torch.Tensor] | None:
    """Return the tensors of a request that are in a segment; None if they are not.

    The client can still write to the segment. So integers are copied, because indices must not
    change after they were checked. Use the tensors only until the request is answered.

    Args:
        layout: The layout of the tensors.
        chunks: The encoded frame without its header.
        segment: The segment of the call.

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


def all_of(layout: SegmentLayout) -> bytes:
    """Return the encoded `ReadContents` of an answer with all selected values, none encoded."""
    is_kept = len(layout.kinds) <= MOST_KEPT_KINDS
    return (_kept_all if is_kept else _all)(layout)


def _all(layout: SegmentLayout) -> bytes:
    values = [ReadValue(tensor=number) for number, _ in enumerate(layout.kinds)]
    tensors = [spec_of_kind(*kind) for kind in layout.kinds]
    return ReadContents(values=values, tensors=tensors).SerializeToString()


_kept_all = lru_cache(maxsize=256)(_all)

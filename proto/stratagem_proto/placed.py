"""Tensors of a stream whose bytes are in memory that both ends share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from stratagem_proto.codec import copy_bytes, split
from stratagem_proto.frames import ChunkView, Frame, Header
from stratagem_proto.segment import Segment, starts
from stratagem_proto.tensors import allocate, decode_dtype, nbytes_of, spec_of
from stratagem_proto.v1.tensor_pb2 import TensorSpec


def needed(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of a segment that tensors take."""
    return starts([tensor.nbytes for tensor in tensors])[1]


def place(
    header: Header, tensors: Sequence[torch.Tensor], segment: Segment
) -> Frame[Header]:
    """Copies tensors to a segment; returns the frame that says where they are.

    Args:
        header: Of the frame.
        tensors: On any device, contiguous or not.
        segment: Large enough for all that `needed` says.
    """
    frame = Frame(header)
    places, _ = starts([tensor.nbytes for tensor in tensors])
    for index, tensor in enumerate(tensors):
        if tensor.nbytes:
            start = places[index]
            segment.tensor(spec_of(tensor), start).copy_(tensor.detach())
            view = segment.view(start, tensor.nbytes)
            frame.chunks.append(ChunkView(index, 0, view, start))
    return frame


def place_by_runs(
    header: Header, tensors: Sequence[torch.Tensor], segment: Segment, run_bytes: int
) -> Iterator[Frame[Header]]:
    """As `place`, in several frames, whose bytes are each copied when it is asked for.

    So who reads can take those of one frame while those of the next are copied.

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


def borrowed(
    specs: Sequence[TensorSpec], chunks: Sequence[ChunkView]
) -> list[torch.Tensor] | None:
    """The tensors of a request where they are; None if some are not whole in a segment.

    Who made the segment can still write to it, so only floating-point elements are
    left there: indices that were checked must not change. The tensors are to be used
    until the request is answered.

    Args:
        specs: From the header.
        chunks: All that came with the header.
    """
    found = {chunk.tensor: chunk for chunk in chunks if chunk.start is not None}
    wanted = {index for index, spec in enumerate(specs) if nbytes_of(spec)}
    if not found or found.keys() != wanted or len(found) < len(chunks):
        return None
    if not all(_is_whole(chunk, specs[index]) for index, chunk in found.items()):
        return None
    return [_borrowed(spec, found.get(index)) for index, spec in enumerate(specs)]


def _is_whole(chunk: ChunkView, spec: TensorSpec) -> bool:
    return not chunk.offset and len(chunk.data) == nbytes_of(spec)


def _borrowed(spec: TensorSpec, chunk: ChunkView | None) -> torch.Tensor:
    if chunk is None:
        return allocate(spec)
    dtype = decode_dtype(spec.dtype)
    tensor = torch.frombuffer(chunk.data, dtype=dtype).view(tuple(spec.shape))
    return tensor if dtype.is_floating_point else tensor.clone()

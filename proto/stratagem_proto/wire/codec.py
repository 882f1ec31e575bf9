"""Encoding tensors as streams of frames, and decoding them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.frames import ChunkView, Frame, Header
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype, nbytes_of

# Larger copies let other threads run meanwhile.
_LARGE = 256 << 10


def split(
    header: Header, tensors: Sequence[torch.Tensor], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Frame[Header]]:
    """Yield the frames that carry a header and tensors.

    Small tensors share a frame and large ones are split, so that no frame carries more than
    `chunk_bytes` of tensor data. The tensors are read lazily: they must not change before the
    stream ends.
    """
    frame, room = Frame(header), chunk_bytes
    for chunk in _chunks(tensors, chunk_bytes):
        if len(chunk.data) > room:
            yield frame
            frame, room = Frame(), chunk_bytes
        frame.chunks.append(chunk)
        room -= len(chunk.data)
    yield frame


def _chunks(tensors: Sequence[torch.Tensor], chunk_bytes: int) -> Iterator[ChunkView]:
    for index, tensor in enumerate(tensors):
        data = as_bytes(tensor)
        for offset in range(0, len(data), chunk_bytes):
            yield ChunkView(index, offset, data[offset : offset + chunk_bytes])


class Assembler:
    """Puts the chunks of one stream together into tensors.

    Pass each frame's chunks to `add` in the order of their arrival, then call `finish`. The
    constructor takes memory for all tensors: check `tensors.total_nbytes(specs)` against a budget
    before.
    """

    def __init__(
        self, specs: Sequence[TensorSpec], into: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Prepare to receive the described tensors.

        Args:
            specs: Descriptions from the stream's header.
            into: Contiguous CPU tensors of those descriptions, into which the bytes are copied; by
                default new ones.
        """
        self._sizes = [nbytes_of(spec) for spec in specs]
        self._tensors = [allocate(spec) for spec in specs] if into is None else into
        self._views = [as_bytes(tensor) for tensor in self._tensors]
        self._filled = [0] * len(self._sizes)

    def add(self, chunks: Sequence[ChunkView]) -> None:
        """Copy chunks to their places.

        Raises:
            MalformedStreamError: A chunk belongs to no tensor, leaves a gap, overlaps an earlier
                one, or exceeds the tensor.
        """
        for tensor, offset, data, _ in chunks:
            end = self._check(tensor, offset, len(data))
            copy_bytes(self._views[tensor][offset:end], data)
            self._filled[tensor] = end

    def _check(self, tensor: int, offset: int, size: int) -> int:
        if tensor >= len(self._sizes):
            raise MalformedStreamError(f"a chunk is for tensor {tensor} of {len(self._sizes)}")
        if offset != self._filled[tensor]:
            raise MalformedStreamError(
                f"a chunk of tensor {tensor} starts at byte {offset}; "
                f"byte {self._filled[tensor]} comes next"
            )
        if offset + size > self._sizes[tensor]:
            raise MalformedStreamError(
                f"a chunk of tensor {tensor} ends at byte {offset + size}; "
                f"the tensor has {self._sizes[tensor]}"
            )
        return offset + size

    def finish(self) -> list[torch.Tensor]:
        """Return the tensors, whose bytes must all have arrived.

        Raises:
            MalformedStreamError: A tensor is incomplete; the error names the first one.
        """
        pairs = zip(self._filled, self._sizes, strict=True)
        for index, (filled, size) in enumerate(pairs):
            if filled != size:
                raise MalformedStreamError(
                    f"the stream ended after {filled} of {size} bytes of tensor {index}"
                )
        return list(self._tensors)


def whole(specs: Sequence[TensorSpec], chunks: Sequence[ChunkView]) -> list[torch.Tensor] | None:
    """Return tensors if each of them has arrived in one chunk; otherwise None.

    This is faster than an `Assembler`. Large tensors share the memory of their chunks, which must
    not be used otherwise; they are not aligned, so they suit a single use.

    Args:
        specs: Descriptions from the stream's header.
        chunks: All chunks that came with the header.
    """
    if len(chunks) != len(specs):
        return None
    tensors = []
    for index, (spec, chunk) in enumerate(zip(specs, chunks, strict=True)):
        if chunk.tensor != index or not _is_whole(chunk, nbytes_of(spec)):
            return None
        flat = _flat(chunk.data, decode_dtype(spec.dtype))
        is_flat = len(spec.shape) == 1
        tensors.append(flat if is_flat else flat.view(tuple(spec.shape)))
    return tensors


def _is_whole(chunk: ChunkView, nbytes: int) -> bool:
    in_message = chunk.start is None and not chunk.offset
    return in_message and 0 < nbytes == len(chunk.data)


def _flat(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    if len(data) < _LARGE:
        return torch.frombuffer(bytearray(data), dtype=dtype)
    return torch.from_numpy(np.asarray(_Writable(data))).view(dtype)


class _Writable:
    """The bytes of a message as writable memory for numpy.

    torch warns about read-only memory, and copying each gradient would slow pushes down.
    """

    def __init__(self, data: memoryview) -> None:
        seen = np.frombuffer(data, np.uint8)
        start, _ = seen.__array_interface__["data"]
        self.__array_interface__ = {**seen.__array_interface__, "data": (start, False)}
        self._seen = seen


def copy_bytes(to: memoryview, data: memoryview) -> None:
    """Copy bytes to memory of the same size."""
    if len(data) < _LARGE:
        to[:] = data
    else:
        # numpy releases the interpreter's lock meanwhile.
        np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(data, np.uint8))

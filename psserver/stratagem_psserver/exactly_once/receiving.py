"""Receiving the tensors of requests as described, whole and within the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    MalformedStreamError,
    ResourceExhaustedError,
)
from stratagem_proto.protocol import MAX_TENSORS
from stratagem_proto.v1.parameter_server_pb2 import TensorSplit
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.frames import Assembler, whole_tensors
from stratagem_proto.wire.placed import SegmentLayout, kinds_described, layout_of
from stratagem_proto.wire.segment import Kind, Segment
from stratagem_proto.wire.tensors import is_out_of_memory, total_nbytes
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.limits import Budget, Reservation
from stratagem_psserver.log.changes import Mutation
from stratagem_psserver.uploads import RequestStream, Upload, UploadMemory
from stratagem_rpc.serving.figures import Figures


class Manifest:
    """Descriptions of tensors, which are checked on first use.

    Args:
        specs: The tensors that are sent.
        derived: The tensors that are decoded from them.
        borrows: Whether the tensors are used only until the request is answered, so that they can
            stay in memory that the client shares.
        splits: Which of the tensors that are sent are several ones.

    Attributes:
        specs: The tensors that are sent.
        borrows: As the argument.
        splits: As the argument.
        is_final: Whether no tensors are decoded from them.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        derived: Sequence[TensorSpec] = (),
        borrows: bool = False,
        splits: Sequence[TensorSplit] = (),
    ) -> None:
        self.specs, self._derived, self.borrows = specs, derived, borrows
        self.splits = splits
        self.is_final = not derived

    @cached_property
    def nbytes(self) -> int:
        """Size of the tensors that are sent.

        Raises:
            InvalidArgumentError: There are too many, or a description is invalid.
        """
        if len(self.specs) > MAX_TENSORS:
            raise InvalidArgumentError(
                f"the request has {len(self.specs)} tensors; at most {MAX_TENSORS} are allowed"
            )
        self._check_splits()
        return total_nbytes(self.specs)

    def _check_splits(self) -> None:
        before = -1
        for split in self.splits:
            shape = self.specs[split.tensor].shape if split.tensor < len(self.specs) else ()
            if split.tensor <= before or not shape or sum(split.sizes) != shape[0]:
                raise InvalidArgumentError(
                    f"tensor {split.tensor} of the request, of shape {list(shape)}, cannot be "
                    f"split into {list(split.sizes)[:8]}; sizes are those of its first dimension, "
                    "and tensors are split in ascending order"
                )
            before = split.tensor
        if (pieces := sum(len(split.sizes) for split in self.splits)) > MAX_TENSORS:
            raise InvalidArgumentError(
                f"the tensors of the request are split into {pieces} pieces; at most {MAX_TENSORS} "
                "are allowed"
            )

    def pieces(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that are sent with the pieces of those that are several ones."""
        sizes = {split.tensor: list(split.sizes) for split in self.splits}
        return [
            piece
            for place, tensor in enumerate(tensors)
            for piece in (tensor.split(sizes[place]) if place in sizes else (tensor,))
        ]

    @property
    def staged_nbytes(self) -> int:
        """Size of the tensors that are sent and of those that are decoded from them."""
        derived = 0 if self.is_final else total_nbytes(self._derived)
        return self.nbytes + derived

    @cached_property
    def layout(self) -> SegmentLayout:
        """Where the tensors are in shared memory; use it after `nbytes`, which checks them."""
        return layout_of(kinds_described(self.specs))

    @cached_property
    def _flat_kinds(self) -> tuple[Kind, ...]:
        dtypes = {dtype for dtype, _ in self.layout.kinds}
        return tuple((dtype, torch.Size([self.layout.room // dtype.itemsize])) for dtype in dtypes)

    def flat(self, segment: Segment) -> torch.Tensor | None:
        """Return a vector of the segment that contains all tensors and the gaps between them.

        Returns:
            The vector; None if the tensors have several dtypes or it would exceed the segment.
        """
        kinds = self._flat_kinds
        if len(kinds) != 1 or segment.nbytes < self.layout.room:
            return None
        return segment.tensors(kinds)[0]


@dataclass(frozen=True)
class StagedTensors:
    """The tensors of one request and the bytes of the budget that they occupy.

    Attributes:
        session: The session of the client that sent them.
        tensors: The tensors, in the order of the request.
        reservation: Their bytes of the budget.
        segment: The shared memory that contains them, laid out as the manifest says; None if they
            were sent.
    """

    session: Session
    tensors: list[torch.Tensor]
    reservation: Reservation
    segment: Segment | None = None

    def owned(self, manifest: Manifest) -> StagedTensors:
        """Return these tensors in memory that no client can change any more."""
        if self.segment is None:
            return self
        segment = self.segment.copy(manifest.layout.room)
        tensors = segment.tensors(manifest.layout.kinds)
        if manifest.splits:
            tensors = manifest.pieces(tensors)
        return replace(self, tensors=tensors, segment=segment)


Chunks: TypeAlias = RequestStream[Any]


class Receiver:
    """Receives the tensors of requests.

    Attributes:
        uploads: Memory of answered requests, which later requests reuse.
    """

    def __init__(self, budget: Budget, figures: Figures) -> None:
        self._budget, self._figures = budget, figures
        self.uploads = UploadMemory()

    async def receive(
        self,
        request: Mutation,
        session: Session,
        manifest: Manifest,
        chunks: Chunks,
    ) -> tuple[StagedTensors, Upload]:
        """Receive all tensors of a request.

        Returns:
            The tensors, whose reservation the caller releases, and the memory into which they were
            received.

        Raises:
            MalformedStreamError: Bytes are missing, as when the connection was cut, or too many
                came. The request keeps its number, since it may be sent again whole.
            ResourceExhaustedError: The budget, the client's share of it, or the memory has not as
                many bytes left.
            InvalidArgumentError: The description of a tensor is not valid.
        """
        nbytes = manifest.nbytes
        upload = self.uploads.take(manifest.specs, nbytes)
        client = session.label
        purpose = f"request {request.key.sequence} of {client}"
        staged = nbytes if manifest.is_final else manifest.staged_nbytes
        reservation = self._budget.reserve(staged, purpose, client)
        try:
            tensors, segment = await _tensors(manifest, upload, chunks)
            pieces = manifest.pieces(tensors) if manifest.splits else tensors
        except BaseException:
            reservation.release()
            raise
        if nbytes:
            self._figures.calls(type(request).__name__).received.observe(nbytes)
            session.received += nbytes
        return StagedTensors(session, pieces, reservation, segment), upload


async def _tensors(
    manifest: Manifest, upload: Upload, chunks: Chunks
) -> tuple[list[torch.Tensor], Segment | None]:
    """Receive all tensors; return them and the segment that contains them, if any.

    Raises:
        MalformedStreamError: Bytes are missing, as when the connection was cut, or too many came.
            The request keeps its number, since it may be sent again whole.
    """
    if manifest.borrows and chunks.segment is not None:
        with _allocating():
            tensors = chunks.in_segment(manifest.layout)
        if tensors is not None:
            return tensors, chunks.segment
    if chunks.is_one_message and (tensors := chunks.sent_whole(manifest.layout)) is not None:
        return tensors if manifest.borrows else _owned(tensors, upload), None
    specs, first = manifest.specs, await anext(chunks)
    if manifest.borrows and (tensors := whole_tensors(specs, first)) is not None:
        await _require_end(chunks)
        return tensors, None
    with _allocating():
        assembler = Assembler(specs, upload.tensors())
    assembler.add(first)
    async for some in chunks:
        assembler.add(some)
    return assembler.finish(), None


def _owned(tensors: list[torch.Tensor], upload: Upload) -> list[torch.Tensor]:
    """Return copies in memory that may be kept for long, and be resized."""
    with _allocating():
        own = upload.tensors()
        if own:
            torch._foreach_copy_(own, tensors)
        return list(own)


async def _require_end(chunks: Chunks) -> None:
    if chunks.is_over:
        return
    async for some in chunks:
        if some:
            raise MalformedStreamError("the stream continues after the last byte of its tensors")


@contextmanager
def _allocating() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise InvalidArgumentError(
                f"a tensor cannot be made as described: {str(error).splitlines()[0]}"
            ) from error
        raise ResourceExhaustedError(
            "the machine of the server is out of memory; repeat the request in a "
            "moment, or start the server with a smaller --staged-bytes"
        ) from error

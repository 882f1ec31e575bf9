"""Receiving the tensors of requests, whole and within the budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    MalformedStreamError,
    ResourceExhaustedError,
)
from stratagem_proto.serving.figures import Figures
from stratagem_proto.serving.rpc_boundary import is_over
from stratagem_proto.wire.frames import Assembler, whole
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.limits import Budget, Reservation, is_out_of_memory
from stratagem_psserver.log.changes import Mutation
from stratagem_psserver.uploads import RequestStream, Upload, UploadMemory


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
        tensors = manifest.pieces(segment.tensors(manifest.layout.kinds))
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

    def reservation(self, client: str) -> Reservation:
        """Return a reservation of no bytes, as a context that releases what it has absorbed."""
        return Reservation(self._budget, 0, client)

    async def receive(
        self,
        request: Mutation,
        session: Session,
        manifest: Manifest,
        chunks: Chunks,
        reservation: Reservation,
    ) -> tuple[StagedTensors, Upload]:
        """Receive all tensors of a request.

        Returns:
            The tensors, and the memory into which they were received.

        Raises:
            MalformedStreamError: Bytes are missing, as when the connection was cut, or too many
                came. The request keeps its number, since it may be sent again whole.
            ResourceExhaustedError: The budget, the client's share of it, or the memory has not as
                many bytes left.
            InvalidArgumentError: The description of a tensor is not valid.
        """
        upload = self.uploads.take(manifest.specs, manifest.nbytes)
        client, nbytes = session.label, manifest.staged_nbytes
        purpose = f"request {request.key.sequence} of {client}"
        reservation.absorb(self._budget.reserve(nbytes, purpose, client))
        tensors, segment = await _tensors(manifest, upload, chunks)
        if manifest.nbytes:
            self._figures.calls(type(request).__name__).received.observe(manifest.nbytes)
            session.received += manifest.nbytes
        return StagedTensors(session, manifest.pieces(tensors), reservation, segment), upload


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
            tensors = chunks.found(manifest.layout)
        if tensors is not None:
            return tensors, chunks.segment
    specs, first = manifest.specs, await anext(chunks)
    if manifest.borrows and (tensors := whole(specs, first)) is not None:
        if not is_over(chunks):
            await _end(chunks)
        return tensors, None
    with _allocating():
        assembler = Assembler(specs, upload.tensors())
    assembler.add(first)
    async for some in chunks:
        assembler.add(some)
    return assembler.finish(), None


async def _end(chunks: Chunks) -> None:
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

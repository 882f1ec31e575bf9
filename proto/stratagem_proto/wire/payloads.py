"""Splitting payloads of any size into messages of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from stratagem_proto.protocol import CHUNK_BYTES

Item = TypeVar("Item", bound=Message)


def split(payload: bytes, nbytes: int = CHUNK_BYTES) -> tuple[list[bytes], bytes]:
    """Split a payload into pieces of so many bytes, and the last piece."""
    last = max(len(payload) - 1, 0) // nbytes * nbytes
    starts = range(0, last, nbytes)
    return [payload[start : start + nbytes] for start in starts], payload[last:]


class Pieces:
    """The pieces of a payload that have arrived."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def joined(self, last: bytes) -> bytes:
        """Return the payload with its last piece; the next piece begins another payload."""
        pieces, self._pieces = self._pieces, []
        return b"".join((*pieces, last)) if pieces else last


def batches(items: Iterable[Item], nbytes: int = CHUNK_BYTES) -> Iterator[list[Item]]:
    """Yield lists of messages of about so many bytes each, with at least one message."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += item.ByteSize()
        if size >= nbytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

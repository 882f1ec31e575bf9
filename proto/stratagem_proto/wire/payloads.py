"""Payloads of any size in messages of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from stratagem_proto.protocol import CHUNK_BYTES

Item = TypeVar("Item", bound=Message)


def split(payload: bytes, nbytes: int = CHUNK_BYTES) -> tuple[list[bytes], bytes]:
    """Cut a payload into pieces of that many bytes, and the last one."""
    last = max(len(payload) - 1, 0) // nbytes * nbytes
    starts = range(0, last, nbytes)
    return [payload[start : start + nbytes] for start in starts], payload[last:]


class Pieces:
    """The pieces of a payload that have come so far."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def joined(self, last: bytes) -> bytes:
        """Return the payload that ends so; the next piece begins another one."""
        pieces, self._pieces = self._pieces, []
        return b"".join((*pieces, last)) if pieces else last


def batches(items: Iterable[Item], nbytes: int = CHUNK_BYTES) -> Iterator[list[Item]]:
    """Put items together, as many as about that many bytes hold, at least one."""
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

"""Splitting payloads of any size into messages of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import TypeVar

from google.protobuf.message import Message

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.protocol import CHUNK_BYTES

Item = TypeVar("Item", bound=Message)


def split(payload: bytes, nbytes: int = CHUNK_BYTES) -> tuple[list[bytes], bytes]:
    """Split a payload into pieces of so many bytes, and the last piece."""
    last = max(len(payload) - 1, 0) // nbytes * nbytes
    starts = range(0, last, nbytes)
    return [payload[start : start + nbytes] for start in starts], payload[last:]


class Pieces:
    """The pieces of a payload that have arrived.

    Args:
        most_bytes: The most bytes that they may have together, without the last one.
    """

    def __init__(self, most_bytes: float = inf) -> None:
        self._pieces: list[bytes] = []
        self._most_bytes = most_bytes
        self._nbytes = 0

    def add(self, piece: bytes) -> None:
        """Keep a piece; raise `ResourceExhaustedError` if it is one too many."""
        self._nbytes += len(piece)
        if self._nbytes > self._most_bytes:
            raise ResourceExhaustedError(
                f"a payload has over {self._most_bytes:,} bytes, half of the memory of who gets it"
            )
        self._pieces.append(piece)

    def joined(self, last: bytes) -> bytes:
        """Return the payload with its last piece; the next piece begins another payload."""
        pieces, self._pieces, self._nbytes = self._pieces, [], 0
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

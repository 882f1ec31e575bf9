"""Records and images as messages of a bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from stratagem_proto.errors import DataLossError
from stratagem_proto.log.batches import (
    HEADER_BYTES,
    Entry,
    decode_contents,
    decode_header,
    encode_batch,
)
from stratagem_proto.log.segments import Record
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.v1.replication_pb2 import BatchPiece, FollowResponse, ImageBegin, ImagePiece


def batch_messages(first: int, entries: list[Entry]) -> Iterator[FollowResponse]:
    """Yield the messages that carry consecutive records.

    Args:
        first: The position of the first one.
        entries: The records.
    """
    data = memoryview(b"".join(encode_batch(first, entries)))
    for begin in range(0, len(data), CHUNK_BYTES):
        piece = bytes(data[begin : begin + CHUNK_BYTES])
        is_last = begin + CHUNK_BYTES >= len(data)
        yield FollowResponse(batch=BatchPiece(data=piece, is_last=is_last))


class Arrival(NamedTuple):
    """A record that has come.

    Attributes:
        entry: It as bytes.
        record: It decoded.
    """

    entry: Entry
    record: Record


class BatchAssembler:
    """Puts batches together from their pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, piece: BatchPiece) -> list[Arrival]:
        """Return the records of the batch that a piece completes; none if it completes none.

        Raises:
            DataLossError: The batch is damaged.
        """
        self._pieces.append(piece.data)
        if not piece.is_last:
            return []
        data = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        header = decode_header(data[:HEADER_BYTES])
        entries = decode_contents(header, data[HEADER_BYTES:]) if header else None
        if header is None or entries is None:
            raise DataLossError("a batch of records was damaged on its way; it is asked for again")
        return [_arrival(*each) for each in enumerate(entries, header.first)]


def _arrival(position: int, entry: Entry) -> Arrival:
    message = LogRecord.FromString(entry.message)
    return Arrival(entry, Record(position, message, memoryview(entry.tensors)))


def image_messages(
    files: Iterable[tuple[str, memoryview]], begin: ImageBegin
) -> Iterator[FollowResponse]:
    """Yield the messages that carry the files of an image.

    Args:
        files: Its files in pieces, each with the path of its file; one file after the other.
        begin: What is told before them.
    """
    yield FollowResponse(image=begin)
    for path, piece in files:
        yield FollowResponse(piece=ImagePiece(path=path, data=bytes(piece)))
    yield FollowResponse(piece=ImagePiece(is_last=True))


class ImageFiles:
    """Writes the files of an image from their pieces.

    Args:
        folder: Where to, an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, pieces: Iterable[ImagePiece]) -> None:
        """Append pieces to their files.

        Raises:
            DataLossError: A path leads out of the folder.
        """
        for piece in pieces:
            if piece.path:
                with self._path(piece.path).open("ab") as file:
                    file.write(piece.data)

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise DataLossError(f"an image has no file {name!r}")
        path = self._folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

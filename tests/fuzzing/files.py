"""Readers of checkpoints and logs, whose checksums are right: whoever writes them can do that."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from stratagem_storage.checkpoint.index import Index, refused_if_unsound
from stratagem_storage.checkpoint.parts import read_plain
from stratagem_storage.checkpoint.wholes import wholes_of
from stratagem_storage.log import LogReader, segment_name
from stratagem_storage.stores.local import LocalFolder
from tests.fuzzing.target import Target
from tests.hostile_checkpoints import canonical, saved
from tests.storage.log.test_hostile_segments import batch, head, record

_PART = "part-0.safetensors"

# It is in memory where there is such a folder, and goes with the process.
_SHARED = Path("/dev/shm")
_TEMPORARY = TemporaryDirectory(dir=_SHARED if _SHARED.is_dir() else None)
_FOLDER = Path(_TEMPORARY.name)


def _index(data: bytes) -> None:
    """Read an index whose contents are these."""
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
        document = {"content": content, "crc32": zlib.crc32(canonical(content))}
        _read(canonical(document))


def _read(data: bytes) -> None:
    try:
        index = Index.from_bytes(data, "an index")
        with refused_if_unsound("an index"):
            wholes_of(index)
    except (ValueError, RecursionError) as error:
        raise AssertionError("an index was not refused by an error of ours") from error


def _indices() -> Iterator[bytes]:
    with TemporaryDirectory() as folder:
        found = saved(Path(folder) / "checkpoints") / "index.json"
        yield canonical(json.loads(found.read_bytes())["content"])


def _parts(data: bytes) -> None:
    (_FOLDER / _PART).write_bytes(data)
    read_plain(LocalFolder.at(_FOLDER), _PART)


def _plain_parts() -> Iterator[bytes]:
    with TemporaryDirectory() as folder:
        yield (saved(Path(folder) / "checkpoints") / _PART).read_bytes()


def _segments(data: bytes) -> None:
    """Read a batch of so many records as the first byte says, whose contents are the others."""
    count, contents = data[:1], data[1:]
    path = _FOLDER / segment_name(1)
    path.write_bytes(head() + batch(1, count[0] if count else 0, contents))
    deque(LogReader([path]).records(), 0)


def _batches() -> Iterator[bytes]:
    yield b"\x02" + record(b"\x09" + bytes(8), b"abc", 9, 3) + record(b"", b"", 0, 0)


TARGETS: Mapping[str, Target] = {
    "indices": Target(_index, _indices),
    "parts": Target(_parts, _plain_parts),
    "segments": Target(_segments, _batches),
}

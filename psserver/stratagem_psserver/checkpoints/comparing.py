"""Which rows of a snapshot differ from those of an earlier checkpoint.

Bytes are compared, so that it does not matter who changed them, how often, or in which run of the
server. A row of a table is compared with the one that has had its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from stratagem_proto.checkpoint.entries import (
    NUMBER_BYTES,
    TensorEntry,
    are_alike,
    row_count,
    row_nbytes,
)
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.parts import Content
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.variables.snapshot import Snapshot
from stratagem_psserver.variables.snapshot_values import SnapshotValue

_RUN_BYTES = 4 << 20

_WORDS = torch.int64, torch.int32, torch.int16, torch.uint8


def compared(snapshot: Snapshot, base: Checkpoint) -> list[Content]:
    """Return what has to be written of a snapshot beside an earlier checkpoint.

    Args:
        snapshot: The snapshot, of which nothing has been taken yet.
        base: The earlier checkpoint.

    Raises:
        DataLossError: Bytes of the earlier checkpoint are missing or damaged.
    """
    contents = zip(snapshot.contents, list(snapshot.values), strict=True)
    return [_compared(content, value, base) for content, value in contents]


def _compared(content: Content, value: SnapshotValue, base: Checkpoint) -> Content:
    entry = base.index.tensors.get(content.spec.name)
    if entry is None or not are_alike(entry.tensor, content.tensor):
        return content
    if not content.tensor.shape or row_nbytes(content.tensor):
        return replace(content, changed=_changed(content, value, base, entry))
    return content


def _changed(
    content: Content, value: SnapshotValue, base: Checkpoint, entry: TensorEntry
) -> torch.Tensor | None:
    """Return the numbers of the rows that differ; None if these take no less than all rows."""
    size, rows = row_nbytes(content.tensor), row_count(content.tensor)
    most = size * rows // (size + NUMBER_BYTES)
    found, count, first = [torch.empty(0, dtype=torch.int64)], 0, 0
    for run in _split(value.runs(), size):
        found.append(first + _differing(run, base, entry, first))
        count, first = count + len(found[-1]), first + len(run)
        if count >= most and count:
            return None
    return torch.cat(found)


def _split(runs: Iterator[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """Yield the bytes of rows, some rows at a time."""
    at_once = max(1, _RUN_BYTES // size)
    for run in runs:
        if run.numel():
            rows = torch.frombuffer(as_bytes(run), dtype=torch.uint8).view(-1, size)
            yield from rows.split(at_once)


def _differing(run: torch.Tensor, base: Checkpoint, entry: TensorEntry, first: int) -> torch.Tensor:
    """Return which of some rows, the first of which has a number, are not in the base."""
    size = run.shape[1]
    known = max(0, min(len(run), row_count(entry.tensor) - first))
    before = torch.empty(known, size, dtype=torch.uint8)
    if known:
        base.read(entry, first * size, as_bytes(before))
    differs = torch.ones(len(run), dtype=torch.bool)
    differs[:known] = (_words(run[:known]) != _words(before)).any(1)
    return differs.nonzero().squeeze(1)


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of rows as the widest words that fit: these are compared the fastest."""
    size = rows.shape[1]
    return rows.view(next(word for word in _WORDS if not size % word.itemsize))

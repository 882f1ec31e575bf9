"""Tensors of which a checkpoint has only the rows that differ from those of its base."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from stratagem_proto.checkpoint.blocks import CheckedFile
from stratagem_proto.checkpoint.entries import TensorEntry, row_count, row_nbytes
from stratagem_proto.errors import DataLossError
from stratagem_proto.wire.tensors import as_bytes

Read: TypeAlias = Callable[[int, memoryview], None]
"""Reads the bytes of a tensor from a position on into memory until that is full."""


class Overlay:
    """A tensor that is put together of the rows of a file and of those of a base.

    Args:
        file: The file with the rows that differ.
        entry: The place of these rows.
        base: The place of the tensor in the base.
        read_base: Reads that tensor.

    Raises:
        DataLossError: The numbers of the rows are missing or damaged, or cannot be.
    """

    def __init__(
        self, file: CheckedFile, entry: TensorEntry, base: TensorEntry, read_base: Read
    ) -> None:
        self._file, self._begin = file, entry.begin
        self._row_nbytes, self._read_base = row_nbytes(entry.tensor), read_base
        self._base_rows = row_count(base.tensor)
        self._numbers = _numbers(file, entry)
        _require_possible(self._numbers, row_count(entry.tensor), self._base_rows, file)

    def read(self, start: int, target: memoryview) -> None:
        """Read the bytes from `start` on into `target` until that is full.

        Raises:
            DataLossError: The bytes are missing or damaged.
        """
        size = self._row_nbytes
        first, last = start // size, -(-(start + len(target)) // size)
        if len(target) == (last - first) * size:
            self._read_rows(first, last, target)
            return
        rows = memoryview(bytearray((last - first) * size))
        self._read_rows(first, last, rows)
        target[:] = rows[start - first * size :][: len(target)]

    def _read_rows(self, first: int, last: int, target: memoryview) -> None:
        size, ends = self._row_nbytes, torch.tensor([first, last])
        low, high = torch.searchsorted(self._numbers, ends).tolist()
        kept = min(last, self._base_rows)
        if first < kept and high - low < last - first:
            self._read_base(first * size, target[: (kept - first) * size])
        if low < high:
            rows = torch.empty(high - low, size, dtype=torch.uint8)
            self._file.read(self._begin + low * size, as_bytes(rows))
            into = torch.frombuffer(target, dtype=torch.uint8).view(-1, size)
            into[self._numbers[low:high] - first] = rows


def _numbers(file: CheckedFile, entry: TensorEntry) -> torch.Tensor:
    """Return the numbers of the rows that differ."""
    assert entry.changed is not None
    file.require_size()
    numbers = torch.empty(entry.changed.count, dtype=torch.int64)
    if len(numbers):
        file.read(entry.changed.begin, as_bytes(numbers))
    return numbers


def _require_possible(numbers: torch.Tensor, rows: int, base_rows: int, file: CheckedFile) -> None:
    """Check that each row is in the file or in the base, and none is anywhere else."""
    ends = numbers[:1].tolist(), numbers[-1:].tolist()
    is_within = not len(numbers) or (ends[0][0] >= 0 and ends[1][0] < rows)
    ascends = bool((numbers.diff() > 0).all())
    beyond = len(numbers) - int(torch.searchsorted(numbers, base_rows))
    if not (is_within and ascends and beyond == max(0, rows - base_rows)):
        raise DataLossError(
            f"{str(file.folder.path / file.name)!r} does not have the rows that its checkpoint "
            "lacks in its base; restore an earlier checkpoint"
        )

"""What a worker tells the others of the order in which it reads what they share."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np
import torch

from stratagem._core.tensors.nests import leaves
from stratagem._input.rounds import Position, Round
from stratagem_proto.input_order import ENDED, BatchRead

# Of a large batch, so many elements of each tensor are looked at, of all rows.
_LOOKED_AT = 16_384


class ReadOrder:
    """Numbers the batches that a worker reads of one dataset, for others to compare.

    Args:
        dataset: The number of the dataset, which is the same on all workers.
        files: The files that the workers share out; without them they share out each batch.
    """

    def __init__(self, dataset: int, files: Sequence[Any] | None = None) -> None:
        self._dataset, self._passes = dataset, count()
        self._files = None if files is None else _digest_of_files(files)

    def read(self, position: Position) -> PassRead:
        """Return what describes the pass that begins now, at a position."""
        return PassRead(self._dataset, next(self._passes), self._files, position)


class PassRead:
    """Describes what is read in one pass."""

    def __init__(self, dataset: int, number: int, files: int | None, position: Position) -> None:
        self._dataset, self._number, self._files = dataset, number, files
        self._next, self._told = _batches_before(position), False

    def describe(self, round_: Round | None) -> BatchRead | None:
        """Return what others are to compare once a round was read, None at the end of the pass."""
        if self._files is not None:
            if self._told and round_ is not None:
                return None
            # At the end once more, which is when the first to begin hears of a difference.
            self._told = True
            return BatchRead(self._dataset, self._number, None, self._files)
        digest = ENDED if round_ is None else round_.digest
        if digest is None:
            return None
        number, self._next = self._next, self._next + 1
        return BatchRead(self._dataset, self._number, number, digest)


def _batches_before(position: Position) -> int:
    return 0 if position.states is None else int(position.states[0]["elements"])


def digest_of_indices(indices: Iterable[Any]) -> int:
    """Return a digest of the indices of a batch, as samplers draw them."""
    return _digest(map(_described, indices))


def digest_of_contents(element: Any) -> int:
    """Return a digest of the form of an element, and of samples of its values.

    Floating-point values count only where there is nothing else: they may be rounded, or augmented,
    differently on each machine.
    """
    exact: list[bytes] = []
    rough: list[Any] = []
    for leaf in leaves(element):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        is_tensor = isinstance(leaf, torch.Tensor)
        if isinstance(leaf, float | complex | np.inexact) or (
            is_tensor and (leaf.is_floating_point() or leaf.is_complex())
        ):
            rough.append(leaf)
        else:
            exact.append(_looked_at(leaf))
    return _digest(exact or map(_looked_at, rough))


def _digest(parts: Iterable[bytes]) -> int:
    hashed = blake2b(digest_size=8)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    # Digests travel as int64 tensors through loaders; 0 is the end of a pass.
    return max(int.from_bytes(hashed.digest(), "little") >> 1, 1)


def _described(value: Any) -> bytes:
    """Return bytes that tell an index, or another object, from others by its value alone."""
    if isinstance(value, str | bytes | bytearray):
        return value.encode() if isinstance(value, str) else bytes(value)
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        with suppress(OverflowError):
            return np.array(value, np.int64).tobytes()
    if isinstance(value, list | tuple):
        return b"(" + b",".join(map(_described, value)) + b")"
    if isinstance(value, np.ndarray) and value.ndim:
        return b"(" + b",".join(map(_described, value.tolist())) + b")"
    try:
        return str(operator.index(value)).encode()
    except (TypeError, ValueError):
        # The text of any other object may have its address.
        return repr(value).encode() if isinstance(value, float | complex) else b""


def _looked_at(leaf: Any) -> bytes:
    return _sampled(leaf) if isinstance(leaf, torch.Tensor) else _described(leaf)


def _sampled(tensor: torch.Tensor) -> bytes:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.detach().coalesce().indices()
    elif tensor.layout is torch.jagged:
        tensor = tensor.values()
    elif tensor.is_nested or tensor.layout is not torch.strided:
        return b""
    form = str(tuple(tensor.shape)).encode()
    rows = (
        tensor.detach().reshape(len(tensor) if tensor.dim() else 1, -1) if tensor.numel() else None
    )
    if rows is None:
        return form
    columns = max(_LOOKED_AT // len(rows), 1)
    rows = rows[:, :: -(-rows.shape[1] // columns)]
    return form + rows.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest_of_files(files: Sequence[Any]) -> int:
    """Return a digest of the names of files, wherever each machine has them."""
    if not all(isinstance(each, str | os.PathLike) for each in files):
        return digest_of_indices(files)
    names = [os.path.normpath(os.fspath(each)) for each in files]
    # There is none where some are relative and some absolute.
    with suppress(ValueError):
        names = [os.path.relpath(each, os.path.commonpath(names)) for each in names]
    return digest_of_indices(names)

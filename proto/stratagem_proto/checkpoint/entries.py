"""The places of tensors in the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratagem_proto.checkpoint.blocks import FileEntry
from stratagem_proto.programs.narrow_rows import stored_rows
from stratagem_proto.v1.checkpoint_pb2 import ChangedRows, StoredRows
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import nbytes_of

NUMBER_BYTES = 8
"""The bytes of the number of a row."""


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor in a checkpoint.

    Attributes:
        spec: The server's description of the variable.
        file: The name of the file.
        begin: The position of the first byte in the file.
        version: The version of the variable.
        rows: The stored rows, if the variable is a table or a slot of one.
        changed: The rows that differ from those of the base, if the file has only these.
    """

    spec: VariableSpec
    file: str
    begin: int
    version: int = 1
    rows: StoredRows | None = None
    changed: ChangedRows | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def tensor(self) -> TensorSpec:
        """The description of the stored tensor."""
        return stored_tensor(self.spec, self.rows)

    @property
    def nbytes(self) -> int:
        """The bytes of the stored tensor, those of the base included."""
        return nbytes_of(self.tensor)

    @property
    def extents(self) -> Sequence[tuple[int, int]]:
        """The first byte and the number of bytes of what the file has of it."""
        if self.changed is None:
            return [(self.begin, self.nbytes)]
        count = self.changed.count
        numbers = self.changed.begin, count * NUMBER_BYTES
        return [numbers, (self.begin, count * row_nbytes(self.tensor))]


def row_count(tensor: TensorSpec) -> int:
    """Return how many rows a tensor has: one if it has no dimensions."""
    return tensor.shape[0] if tensor.shape else 1


def row_nbytes(tensor: TensorSpec) -> int:
    """Return the bytes of one row."""
    return nbytes_of(some_rows(tensor, 1))


def are_alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Return whether rows of two tensors are of the same dtype and shape."""
    return (one.dtype, one.shape[1:], bool(one.shape)) == (
        other.dtype,
        other.shape[1:],
        bool(other.shape),
    )


def some_rows(tensor: TensorSpec, count: int) -> TensorSpec:
    """Return the description of some rows of a tensor."""
    return TensorSpec(dtype=tensor.dtype, shape=(count, *tensor.shape[1:]))


def stored_tensor(spec: VariableSpec, rows: StoredRows | None) -> TensorSpec:
    """Return the description of the tensor that is stored for a variable: all rows or some."""
    return spec.tensor if rows is None else stored_rows(spec, rows.count)


@dataclass(frozen=True)
class TensorFile:
    """A written file of tensors.

    Attributes:
        name: The name of the file.
        file: Its size and checksums.
        tensors: The tensors in it.
    """

    name: str
    file: FileEntry
    tensors: Sequence[TensorEntry]

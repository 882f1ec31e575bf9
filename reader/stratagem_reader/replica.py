"""The values of one version here, and taking the next version over all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from stratagem_proto.errors import (
    DataLossError,
    DifferentTrainingError,
    InvalidArgumentError,
    RowIndexError,
    VariableNotFoundError,
)
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import allocate
from stratagem_reader.changes import Change, all_changes, write_rows
from stratagem_reader.source import Chain, Version
from stratagem_reader.tables import Commit, ReplicaTable
from stratagem_storage.checkpoint.entries import KEYS, TensorEntry
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.checkpoint.wholes import Whole, WholeTable, wholes_of


class DenseValue:
    """A variable that is whole here, whatever parts servers have of it.

    Args:
        whole: Its description.

    Attributes:
        value: The value. It stays the same tensor, which each version writes.
        pieces: The views of it that the servers' tensors are, by their names.
    """

    def __init__(self, whole: Whole) -> None:
        self.rows = {piece.entry.name: piece.rows for piece in whole.pieces}
        self.hold(allocate(whole.tensor))

    def hold(self, value: torch.Tensor) -> None:
        """Have another tensor as the value, before anybody has this one."""
        self.value = value
        self.pieces = {
            name: rows.select(value) if value.dim() else value for name, rows in self.rows.items()
        }

    def begin(self, changes: dict[str, Change]) -> None:
        """Take what was read, before anybody has this value; it takes no memory twice then."""
        if len(self.pieces) == 1:
            (piece,) = self.pieces
            self.hold(changes[piece].values)
            return
        for piece, view in self.pieces.items():
            view.copy_(changes[piece].values)
            changes[piece] = replace(changes[piece], values=view)

    def writes(self, changes: Mapping[str, Change]) -> list[Commit]:
        """Return what writes what a version changes; nothing if that is nothing."""
        found = [(view, changes[piece]) for piece, view in self.pieces.items()]
        return [
            _writing(view, one) for view, one in found if one.numbers is None or len(one.numbers)
        ]

    @property
    def form(self) -> object:
        """That it is no table, its shape and its dtype."""
        return False, tuple(self.value.shape), self.value.dtype

    def takes(self, whole: Whole) -> bool:
        """Return whether it is the same variable, divided in the same way."""
        rows = {piece.entry.name: piece.rows for piece in whole.pieces}
        is_alike = (tuple(self.value.shape), self.value.dtype) == (whole.shape, whole.dtype)
        return is_alike and rows == self.rows


@dataclass
class Layout:
    """What a version consists of.

    Attributes:
        entries: All tensors of the servers, by name.
        dense: The variables that are whole here, by name.
        tables: The tables, by name.
    """

    entries: dict[str, TensorEntry] = field(default_factory=dict)
    dense: dict[str, DenseValue] = field(default_factory=dict)
    tables: dict[str, ReplicaTable] = field(default_factory=dict)

    def following(self, entries: dict[str, TensorEntry], is_fresh: bool) -> Layout:
        """Return the layout of a later version; what stays what it is shares its memory.

        Args:
            entries: The tensors of that version.
            is_fresh: Whether they come whole, so that tables get memory of their own.

        Raises:
            DifferentTrainingError: Variables are gone, or have another dtype or shape.
            DataLossError: Parts of a variable are missing.
        """
        if not is_fresh and forms_of(entries) == forms_of(self.entries):
            return Layout(entries, self.dense, self.tables)
        found = Layout(entries)
        wholes = wholes_of(Index({}, entries))
        for name in [*self.dense, *self.tables]:
            mine = self.dense[name].form if name in self.dense else self.tables[name].form
            require_kept(name, mine, wholes.get(name), "make another stratagem.Reader to follow it")
        for name, whole in wholes.items():
            if isinstance(whole, WholeTable):
                table = self.tables.get(name)
                keeps = table is not None and not is_fresh and table.takes(whole)
                found.tables[name] = table if table and keeps else ReplicaTable(whole)
            else:
                dense = self.dense.get(name)
                keeps = dense is not None and dense.takes(whole)
                found.dense[name] = dense if dense and keeps else DenseValue(whole)
        return found


def require_kept(name: str, mine: object, whole: Whole | None, remedy: str) -> None:
    """Check that a variable is in the next version, as it was.

    Args:
        name: The variable.
        mine: Whether it is a table, its shape and its dtype.
        whole: What the next version has.
        remedy: What to do otherwise.

    Raises:
        DifferentTrainingError: It is not.
    """
    if whole is None or mine != (isinstance(whole, WholeTable), whole.shape, whole.dtype):
        raise DifferentTrainingError(
            f"the next version does not have {name!r} as it was followed: it is of another model, "
            f"or the variable was deleted; {remedy}",
            variable=name,
        )


def forms_of(entries: Mapping[str, TensorEntry]) -> dict[str, object]:
    """Return what does not change from one version of a model to the next, by tensor."""
    return {
        name: (entry.spec, entry.rows is None)
        for name, entry in entries.items()
        if not name.endswith(KEYS)
    }


class RowForm(NamedTuple):
    """What a row of a variable is like.

    Attributes:
        name: The variable.
        dtype: The dtype of its elements.
        shape: The shape of a row.
    """

    name: str
    dtype: torch.dtype
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.shape.numel()

    def default(self, data: bytes) -> torch.Tensor | None:
        """Return what bytes say that missing rows get: one element, or a row; None if none.

        Raises:
            InvalidArgumentError: They are neither.
        """
        if not data:
            return None
        if len(data) not in (self.dtype.itemsize, self.nbytes):
            raise InvalidArgumentError(
                f"{len(data)} bytes are neither an element nor a row of {self.name!r}, which have "
                f"{self.dtype.itemsize} and {self.nbytes}",
                variable=self.name,
            )
        value = torch.frombuffer(bytearray(data), dtype=self.dtype)
        return value.reshape(self.shape if len(data) == self.nbytes else ())


@dataclass(frozen=True)
class Prepared:
    """A version that was read and checked, and only has to be put in place.

    Attributes:
        version: The version.
        layout: What it consists of.
        commits: What there is to do.
        changes: What differs from the version before, by tensor; of a whole version, all.
        is_whole: Whether it is a whole version.
    """

    version: Version
    layout: Layout
    commits: Sequence[Commit]
    changes: Mapping[str, Change]
    is_whole: bool


class Replica:
    """The values of the present version.

    One thread calls `prepare` and then `commit`; others read in between, and nobody reads during
    `commit`. Dense values are written in place, so that whoever refers to them sees each version.

    Attributes:
        version: The present version; None before the first.
        is_intact: Whether all values are of it; False once `commit` has failed half-way, or a
            program has written to a value.
        commits: How often values were put in place.
    """

    def __init__(self) -> None:
        self.version: Version | None = None
        self.is_intact, self.commits = True, 0
        self._layout = Layout()
        # How often each dense value had been written to when it was right, by torch's count.
        self._counts: dict[str, int] = {}

    @property
    def number(self) -> int:
        """The number of the present version; 0 before the first."""
        return 0 if self.version is None else self.version.number

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """The tensors of all servers' parts, by name."""
        return self._layout.entries

    @property
    def dense(self) -> Mapping[str, DenseValue]:
        """The variables that are whole here."""
        return self._layout.dense

    @property
    def tables(self) -> Mapping[str, ReplicaTable]:
        """The tables, of which the rows that were written are here."""
        return self._layout.tables

    @property
    def nbytes(self) -> int:
        """The bytes of all values, without what finds them."""
        dense = sum(each.value.nbytes for each in self._layout.dense.values())
        return dense + sum(each.nbytes for each in self._layout.tables.values())

    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        """Return all tensors of servers' parts; not copies."""
        layout, found = self._layout, dict[str, torch.Tensor]()
        for dense in layout.dense.values():
            found |= dense.pieces
        for table in layout.tables.values():
            for part in table.parts:
                found |= {part.name: part.rows, part.name + KEYS: part.keys}
        return found

    def specs(self) -> list[VariableSpec]:
        """Return what servers know of the variables, and of their shards."""
        entries = self._layout.entries
        return [entry.spec for name, entry in entries.items() if not name.endswith(KEYS)]

    def names(self) -> list[str]:
        """Return the names of all variables."""
        return sorted([*self._layout.dense, *self._layout.tables])

    def table(self, name: str) -> ReplicaTable:
        """Return a table.

        Raises:
            VariableNotFoundError: There is no such variable.
            InvalidArgumentError: It is no table.
        """
        found = self._layout.tables.get(name)
        if found is not None:
            return found
        self._require_known(name)
        raise InvalidArgumentError(f"{name!r} is no table; read it by value()", variable=name)

    def value(self, name: str) -> torch.Tensor:
        """Return the value of a variable that is whole here; not a copy.

        Raises:
            VariableNotFoundError: There is no such variable.
            InvalidArgumentError: It is a table.
        """
        found = self._layout.dense.get(name)
        if found is not None:
            return found.value
        self._require_known(name)
        raise InvalidArgumentError(
            f"{name!r} is a table, whose rows are read by lookup()", variable=name
        )

    def rows(
        self, name: str, keys: torch.Tensor, default: torch.Tensor | float | None
    ) -> torch.Tensor:
        """Return rows of a table, or of another variable with rows, in a tensor of their own.

        Args:
            name: The variable.
            keys: An int64 vector of keys, or of numbers of rows.
            default: What keys without a stored row get; None for what training would begin with.

        Raises:
            VariableNotFoundError: There is no such variable.
            RowIndexError: There is no such row.
        """
        dense = self._layout.dense.get(name)
        if dense is None or not dense.value.dim():
            return self.table(name).look_up(keys, default)
        count = len(dense.value)
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= count):
            raise RowIndexError(f"{name!r} has rows 0 to {count - 1}", variable=name)
        return dense.value.index_select(0, keys)

    def row_form(self, name: str) -> RowForm:
        """Return what a row of a variable is like; it raises like `rows`."""
        dense = self._layout.dense.get(name)
        if dense is None or not dense.value.dim():
            table = self.table(name)
            return RowForm(name, table.dtype, torch.Size(table.row_shape))
        return RowForm(name, dense.value.dtype, dense.value.shape[1:])

    def _require_known(self, name: str) -> None:
        names = self.names()
        if name not in names:
            shown = ", ".join(map(repr, names[:8])) + (" ..." if len(names) > 8 else "")
            raise VariableNotFoundError(
                f"version {self.number} has no variable {name!r}, but {shown or 'none'}; its name "
                "is that in the program that trains it",
                variable=name,
            )

    def prepare(self, version: Version, chains: Sequence[Chain], is_whole: bool) -> Prepared:
        """Read and check what leads to a version; nothing that is read by others changes.

        Args:
            version: The version.
            chains: The files of each part.
            is_whole: Whether they begin with nothing, and not with the present version.

        Raises:
            DataLossError: Something is damaged, or does not fit what is here.
            DifferentTrainingError: It is of another training, or of another model, as far as can be
                told.
        """
        self._require_same_training(version)
        before = {} if is_whole else self._layout.entries
        values = {} if is_whole else self.tensors_by_name()
        changes, files = all_changes(version, chains, before, values)
        entries = {name: one.entry_of_whole for name, one in changes.items()}
        layout = self._layout.following(entries, is_whole)
        commits = [*self._commits(layout, changes, files)]
        return Prepared(version, layout, commits, changes, is_whole)

    def _commits(
        self, layout: Layout, changes: dict[str, Change], files: Mapping[str, str]
    ) -> list[Commit]:
        commits: list[Commit] = []
        for name, dense in layout.dense.items():
            is_new = self._layout.dense.get(name) is not dense
            for piece in dense.pieces:
                self._require_whole(changes[piece], is_new, files[piece])
            if is_new:
                dense.begin(changes)
            else:
                commits += dense.writes(changes)
        for name, table in layout.tables.items():
            is_new = self._layout.tables.get(name) is not table
            for part in table.parts:
                rows, keys = changes[part.name], changes[part.name + KEYS]
                self._require_whole(rows, is_new, files[part.name])
                self._require_whole(keys, is_new, files[part.name])
                if not part.is_unchanged(keys, rows):
                    commits.append(part.prepared(keys, rows, files[part.name]))
        return commits

    def _require_whole(self, change: Change, is_new: bool, where: str) -> None:
        if is_new and change.numbers is not None:
            raise DataLossError(
                f"{where!r} has some rows of {change.entry.name!r}, which is divided otherwise in "
                "the version before",
                variable=change.entry.name,
            )

    def _require_same_training(self, version: Version) -> None:
        mine = self.version
        if mine and mine.training and version.training and mine.training != version.training:
            raise DifferentTrainingError(
                f"version {version.number} is of training {version.training.hex()[:8]}, and this "
                f"reader has followed {mine.training.hex()[:8]}; make another stratagem.Reader to "
                "follow the new one"
            )

    def commit(self, prepared: Prepared) -> None:
        """Put a version in place that was prepared last."""
        self.is_intact = False
        for commit in prepared.commits:
            commit()
        self._layout, self.version, self.is_intact = prepared.layout, prepared.version, True
        self.commits += 1
        self._counts = {name: one.value._version for name, one in self.dense.items()}

    def overwritten(self) -> str | None:
        """Return the name of a dense value that somebody else has written to; None if none.

        Modules that follow have these values as their parameters. torch counts what is written in
        place, if it is not by `.data` or NumPy.
        """
        for name, count in self._counts.items():
            if self._layout.dense[name].value._version != count:
                return name
        return None


def _writing(view: torch.Tensor, change: Change) -> Commit:
    if change.numbers is None:
        return lambda: _copy(view, change.values)
    numbers = change.numbers
    return lambda: write_rows(view, numbers, change.values)


def _copy(view: torch.Tensor, values: torch.Tensor) -> None:
    view.copy_(values)

"""What is in a checkpoint, and in what two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from stratagem_deploy.output import table_console
from stratagem_proto.v1.variable_pb2 import VariableKind
from stratagem_proto.wire.tensors import as_bytes
from stratagem_storage.checkpoint.entries import COUNTS, SEEN, SIGHTS, TOUCHED
from stratagem_storage.checkpoint.folder import Checkpoint
from stratagem_storage.checkpoint.wholes import Whole, WholeTable, wholes_of

_COLUMNS = ("name", "kind", "dtype", "shape", "rows", "shards", "version")


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts about a checkpoint, as JSON has them.

    Of tables "rows" says how many are stored.
    """
    index = checkpoint.index
    wholes = wholes_of(index).values()
    return {
        "path": str(checkpoint.folder),
        "identity": index.identity,
        "files": {name: file.nbytes for name, file in index.files.items()},
        "variables": [_facts(whole) for whole in wholes],
        "nbytes": sum(entry.nbytes for entry in index.tensors.values()),
        "bases": list(index.bases),
        "extra": dict(index.extra),
    }


def _facts(whole: Whole) -> dict[str, Any]:
    first = whole.pieces[0].entry
    kind = VariableKind.Name(first.spec.kind).removeprefix("VARIABLE_KIND_")
    return {
        "name": whole.name,
        "kind": "slot" if whole.slot_of else kind.lower().replace("unspecified", ""),
        "dtype": str(whole.dtype).removeprefix("torch."),
        "shape": list(whole.shape),
        "rows": whole.count if isinstance(whole, WholeTable) else None,
        "shards": len(whole.pieces),
        "version": max(piece.entry.version for piece in whole.pieces),
    }


def table(listed: Mapping[str, Any]) -> None:
    """Print these facts."""
    shown = Table(title=listed["path"])
    for column in _COLUMNS:
        # A name that is cut names nothing.
        shown.add_column(column, overflow="fold")
    for variable in listed["variables"]:
        facts = (variable[column] for column in _COLUMNS)
        shown.add_row(*("" if fact is None else str(fact) for fact in facts))
    console = table_console()
    console.print(shown)
    count, files = len(listed["variables"]), len(listed["files"])
    if listed["bases"]:
        console.print(f"read beside {', '.join(listed['bases'])}")
    console.print(f"{count} tensors, {listed['nbytes']} bytes, in {files} files")


@dataclass(frozen=True)
class Difference:
    """A variable that is not the same in both.

    Attributes:
        name: The variable.
        what: How it differs.
    """

    name: str
    what: str


def differences(first: Checkpoint, second: Checkpoint) -> Iterator[Difference]:
    """Yield the variables that differ, in the order of their names.

    Whether they are split, and into how many shards, makes no difference.

    Raises:
        DataLossError: A checkpoint is damaged.
    """
    ones, others = wholes_of(first.index), wholes_of(second.index)
    for name in sorted(ones.keys() | others.keys()):
        if name not in others:
            yield Difference(name, "only in the first")
        elif name not in ones:
            yield Difference(name, "only in the second")
        elif ones[name].tensor != others[name].tensor:
            change = f"{described(ones[name])} and {described(others[name])}"
            yield Difference(name, change)
        elif what := _difference(ones[name], first, others[name], second):
            yield Difference(name, what)


def _difference(one: Whole, first: Checkpoint, other: Whole, second: Checkpoint) -> str:
    """Return how the values differ; empty if they do not."""
    if isinstance(one, WholeTable) and isinstance(other, WholeTable):
        return _difference_of_tables(one, first, other, second)
    return _amount(one.read(first), other.read(second))


def _difference_of_tables(
    one: WholeTable, first: Checkpoint, other: WholeTable, second: Checkpoint
) -> str:
    unwritten = ""
    if one.spec.initializer != other.spec.initializer:
        unwritten = "rows that were never written have other values"
    keys, rows = one.stored(first)
    other_keys, other_rows = other.stored(second)
    lacking = len(keys) - int(torch.isin(keys, other_keys).sum())
    more = len(other_keys) - (len(keys) - lacking)
    if lacking or more:
        stored = f"{lacking} rows only in the first, {more} only in the second"
    else:
        stored = _amount(rows, other_rows) or _difference_of_times(one, first, other, second)
    return "; ".join(what for what in (stored, unwritten) if what)


def _difference_of_times(
    one: WholeTable, first: Checkpoint, other: WholeTable, second: Checkpoint
) -> str:
    """Return how admission and eviction differ, which belong to the table itself."""
    if one.slot_of or not one.is_dynamic:
        return ""
    if not torch.equal(_idle(one, first), _idle(other, second)):
        return "rows were idle for other times"
    if not torch.equal(_counts(one, first), _counts(other, second)):
        return "rows were written more or less often"
    if not torch.equal(_sights(one, first), _sights(other, second)):
        return "other counts of keys without a row"
    return ""


def _idle(table: WholeTable, checkpoint: Checkpoint) -> torch.Tensor:
    """Return how many writes ago each row was touched, in the order of the keys."""
    times = [part.history.writes - part.vector(checkpoint, TOUCHED) for part in table.parts]
    return _by_key(table, checkpoint, times)


def _counts(table: WholeTable, checkpoint: Checkpoint) -> torch.Tensor:
    """Return the aged count of each row's writes, in the order of the keys."""
    counts = [part.vector(checkpoint, COUNTS) for part in table.parts]
    return _by_key(table, checkpoint, counts)


def _by_key(
    table: WholeTable, checkpoint: Checkpoint, values: Sequence[torch.Tensor]
) -> torch.Tensor:
    return torch.cat([*values])[torch.cat(list(table.keys(checkpoint))).argsort()]


def _sights(table: WholeTable, checkpoint: Checkpoint) -> torch.Tensor:
    """Return the keys that have no row yet, and how often they were seen."""
    seen, sights = (
        torch.cat([part.vector(checkpoint, what) for part in table.parts])
        for what in (SEEN, SIGHTS)
    )
    counted = torch.stack((seen, sights), dim=1)[sights > 0]
    return counted[counted[:, 0].argsort()]


def described(whole: Whole) -> str:
    """Return the dtype and the shape of a variable for people."""
    return f"{str(whole.dtype).removeprefix('torch.')} {list(whole.shape)}"


def _amount(one: torch.Tensor, other: torch.Tensor) -> str:
    if as_bytes(one) == as_bytes(other):
        return ""
    # As doubles: differences of unsigned numbers would wrap around.
    wide = torch.complex128 if one.is_complex() else torch.float64
    distance = (one.to(wide) - other.to(wide)).abs()
    count = int((one != other).sum())
    largest = float(distance.max())
    return f"{count} of {one.numel()} elements, by up to {largest:.6g}"

"""Listing the contents of a checkpoint, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from stratagem_deploy.output.console import table_console
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.wholes import Whole, WholeTable, wholes_of
from stratagem_proto.v1.variable_pb2 import VariableKind

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

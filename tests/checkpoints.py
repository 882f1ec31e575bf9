"""Checkpoints for tests, written without a cluster."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stratagem_proto.division import PartRows
from stratagem_proto.v1.checkpoint_pb2 import StoredRows, TableHistory
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_SLOT,
    VariableSpec,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_storage.checkpoint.entries import KEYS, companion
from stratagem_storage.checkpoint.folder import (
    Checkpoint,
    NewCheckpoint,
    open_checkpoint,
    part_name,
)
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.checkpoint.wholes import WholeTable, wholes_of
from stratagem_storage.stores.places import AnyPlace, Place

State = Mapping[str, torch.Tensor]


def model(name: str, value: torch.Tensor) -> VariableSpec:
    return VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)


def slot(owner: str, key: str, value: torch.Tensor) -> VariableSpec:
    return VariableSpec(
        name=f"{owner}/{key}",
        tensor=spec_of(value),
        kind=VARIABLE_KIND_SLOT,
        slot_of=owner,
    )


def sharded(
    name: str, whole: torch.Tensor, count: int, is_interleaved: bool = False
) -> list[list[tuple[VariableSpec, torch.Tensor]]]:
    """The shards of a variable, each with a slot of its shape and one with a step."""
    found = []
    for number in range(count):
        part = PartRows.of_shard(len(whole), number, count, is_interleaved)
        rows = part.select(whole).clone()
        spec = model(f"{name}/part_{number}", rows)
        spec.partition.CopyFrom(part.partition(whole.shape))
        step = torch.tensor(3.0)
        found.append(
            [
                (spec, rows),
                (slot(spec.name, "Adam/exp_avg", rows), 2 * rows),
                (slot(spec.name, "Adam/step", step), step),
            ]
        )
    return found


Held = tuple[VariableSpec | Content, torch.Tensor]


def save_at(root: AnyPlace, servers: Sequence[Sequence[Held]], keep: int) -> Place:
    """Writes what servers would write."""
    new = NewCheckpoint(root)
    parts = [
        write_part(
            new.folder,
            part_name(number),
            [one if isinstance(one, Content) else Content(one) for one, _ in held],
            [value for _, value in held],
        )
        for number, held in enumerate(servers)
    ]
    return new.commit(Index.of_parts(parts), keep)


def save(root: Path, servers: Sequence[Sequence[Held]], keep: int) -> Path:
    """Writes what servers would write to a folder."""
    return Path(str(save_at(root, servers, keep)))


def stored_table(
    name: str,
    whole: torch.Tensor,
    rows: Sequence[int],
    count: int,
    is_interleaved: bool = False,
) -> list[list[Held]]:
    """Parts of a table of which some rows are stored; the others are 0.5.

    Each has a state that is twice the rows, and began as -1.
    """
    found: list[list[Held]] = []
    wanted = torch.tensor(rows)
    for number in range(count):
        mine = PartRows.of_shard(len(whole), number, count, is_interleaved)
        part, keys = mine.select(whole), mine.local(wanted[mine.has(wanted)])
        spec = model(f"{name}/part_{number}", part)
        spec.partition.CopyFrom(mine.partition(whole.shape))
        state = slot(spec.name, "Adagrad/sum", part)
        for one, initial in ((spec, 0.5), (state, -1.0)):
            one.initializer.constant = initial
            one.table.SetInParent()
        value = StoredRows(count=len(keys), history=TableHistory(writes=3))
        found.append(
            [
                (Content(spec, rows=value), part[keys]),
                (Content(companion(spec.name, KEYS, len(keys))), keys),
                (Content(state, rows=StoredRows(count=len(keys))), 2 * part[keys]),
            ]
        )
    return found


def load(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """All that a checkpoint has."""
    wholes = wholes_of(checkpoint.index)
    return {name: whole.read(checkpoint) for name, whole in wholes.items()}


def load_from(path: AnyPlace) -> dict[str, torch.Tensor]:
    return load(open_checkpoint(path))


def are_equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def stored(path: Path) -> dict[str, dict[int, list[float]]]:
    """The rows that a checkpoint has of tables and their states, by their keys."""
    checkpoint = open_checkpoint(path)
    wholes = wholes_of(checkpoint.index).values()
    return {
        whole.name: _by_key(*whole.stored(checkpoint))
        for whole in wholes
        if isinstance(whole, WholeTable)
    }


def _by_key(keys: torch.Tensor, rows: torch.Tensor) -> dict[int, list[float]]:
    return dict(zip(keys.tolist(), rows.tolist(), strict=True))


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    """The same after a way through a file that holds no code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded

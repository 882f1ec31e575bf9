"""Checkpoints for tests, written without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from stratagem_proto.checkpoint.folder import (
    Checkpoint,
    NewCheckpoint,
    open_checkpoint,
    part_name,
)
from stratagem_proto.checkpoint.index import Index
from stratagem_proto.checkpoint.parts import Content, write_part
from stratagem_proto.checkpoint.whole import wholes_of
from stratagem_proto.tensors import spec_of
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_SLOT,
    Partition,
    VariableSpec,
)

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
    name: str, whole: torch.Tensor, count: int
) -> list[list[tuple[VariableSpec, torch.Tensor]]]:
    """The shards of a variable, each with a slot of its shape and one with a step."""
    found, row = [], 0
    for number, rows in enumerate(whole.tensor_split(count)):
        spec = model(f"{name}/part_{number}", rows)
        offset = [row, *(0 for _ in whole.shape[1:])]
        spec.partition.CopyFrom(Partition(full_shape=whole.shape, offset=offset))
        step = torch.tensor(3.0)
        found.append(
            [
                (spec, rows),
                (slot(spec.name, "Adam/exp_avg", rows), 2 * rows),
                (slot(spec.name, "Adam/step", step), step),
            ]
        )
        row += len(rows)
    return found


def save(
    root: Path,
    servers: Sequence[Sequence[tuple[VariableSpec, torch.Tensor]]],
    keep: int,
) -> Path:
    """Writes what servers would write."""
    new = NewCheckpoint(root)
    parts = [
        write_part(
            new.folder / part_name(number),
            [Content(spec) for spec, _ in held],
            [value for _, value in held],
        )
        for number, held in enumerate(servers)
    ]
    return new.commit(Index.of_parts(parts), keep)


def load(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """All that a checkpoint has."""
    wholes = wholes_of(checkpoint.index)
    return {name: whole.read(checkpoint) for name, whole in wholes.items()}


def load_from(path: Path) -> dict[str, torch.Tensor]:
    return load(open_checkpoint(path))


def are_equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) for name in one
    )

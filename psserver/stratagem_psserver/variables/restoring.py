"""Restoring variables from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.index import refused_if_unsound
from stratagem_proto.checkpoint.wholes import Whole, whole_name, wholes_of
from stratagem_proto.division import PartRows
from stratagem_proto.errors import InvalidArgumentError, NotFoundError
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.tables.reading import read_table
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.store import VariableStore


@dataclass(frozen=True)
class Restored:
    """A variable as it is in a checkpoint.

    Attributes:
        name: The variable.
        value: Its value; if it is a table, its rows with their slots.
        slots: The values of its slot variables, by their names without the variable's.
    """

    name: str
    value: torch.Tensor | Table
    slots: Mapping[str, torch.Tensor]

    @property
    def kept(self) -> set[str]:
        """The names of the slots that the checkpoint has."""
        names = {self.name + suffix for suffix in self.slots}
        if isinstance(self.value, Table):
            names |= {arena.initial.spec.name for arena in self.value.arenas}
        return names


def read_restored(checkpoint: Checkpoint, specs: Sequence[VariableSpec]) -> list[Restored]:
    """Read variables from a checkpoint; of a part of a partitioned variable, only its rows.

    Raises:
        NotFoundError: It does not contain a variable.
        InvalidArgumentError: A variable has another shape or dtype in the checkpoint.
        DataLossError: The checkpoint is damaged.
    """
    with refused_if_unsound(str(checkpoint.folder)):
        return _read_all(checkpoint, specs)


def _read_all(checkpoint: Checkpoint, specs: Sequence[VariableSpec]) -> list[Restored]:
    wholes = wholes_of(checkpoint.index)
    for spec in specs:
        _require_fit(spec, wholes)
    slots: dict[str, list[Whole]] = {}
    for whole in wholes.values():
        slots.setdefault(whole.slot_of, []).append(whole)
    return [_read(checkpoint, spec, wholes[whole_name(spec)], slots) for spec in specs]


def _require_fit(spec: VariableSpec, wholes: Mapping[str, Whole]) -> None:
    name = whole_name(spec)
    if name not in wholes:
        raise NotFoundError(f"the checkpoint has no {name!r}", variable=name)
    tensor = wholes[name].tensor
    split = spec.HasField("partition")
    shape = list(spec.partition.full_shape if split else spec.tensor.shape)
    if (list(tensor.shape), tensor.dtype) != (shape, spec.tensor.dtype):
        raise InvalidArgumentError(
            f"the checkpoint has {name!r} with shape {list(tensor.shape)}, but here it "
            f"has shape {shape}, or another dtype; restore into the model that was "
            "saved",
            variable=name,
        )


def _read(
    checkpoint: Checkpoint, spec: VariableSpec, whole: Whole, slots: Mapping[str, Sequence[Whole]]
) -> Restored:
    mine = slots.get(whole.name, ())
    if spec.HasField("table"):
        rows = [slot for slot in mine if slot.is_split]
        mine = [slot for slot in mine if not slot.is_split]
        value: torch.Tensor | Table = read_table(checkpoint, spec, whole, rows)
    else:
        value = _rows(checkpoint, spec, whole, True)
    state = {
        slot.name.removeprefix(whole.name): _rows(checkpoint, spec, slot, slot.is_split)
        for slot in mine
    }
    return Restored(spec.name, value, state)


def _rows(checkpoint: Checkpoint, spec: VariableSpec, whole: Whole, is_split: bool) -> torch.Tensor:
    if not is_split or not spec.HasField("partition"):
        return whole.read(checkpoint)
    return whole.read_part(checkpoint, PartRows.of(spec))


def replace(store: VariableStore, restored: Sequence[Restored]) -> list[str]:
    """Replace the values and slots of variables by those of a checkpoint; their locks are held.

    Returns:
        The slot variables that were deleted, because the checkpoint does not have them.

    Raises:
        VariableNotFoundError: A variable does not exist any more; nothing is changed.
    """
    for each in restored:
        store.get(each.name)
    gone: list[str] = []
    for each in restored:
        kept = each.kept
        gone += store.delete([name for name in store.slots(each.name) if name not in kept])
        _put(store, each)
    store.recount([each.name for each in restored])
    return gone


def _put(store: VariableStore, restored: Restored) -> None:
    if isinstance(restored.value, Table):
        for arena in restored.value.arenas:
            store.put_table(arena)
    else:
        store.put_value(restored.name, restored.value)
    for suffix, value in restored.slots.items():
        store.put_slot(restored.name + suffix, restored.name, value)

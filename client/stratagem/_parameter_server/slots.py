"""The state that servers keep for optimizers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stratagem._parameter_server.store import RemoteStore
from stratagem._parameter_server.variable import RemoteVariable
from stratagem._servers.listings import list_variables
from stratagem._servers.reads import Reading, read
from stratagem._servers.writes import create, delete
from stratagem_proto.tensors import allocate, spec_of
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, VariableSpec


def read_slots(
    store: RemoteStore, optimizer: str, variable: RemoteVariable
) -> dict[str, torch.Tensor]:
    """Return an optimizer's state for a variable, by torch's keys."""
    specs = _existing(store, optimizer, variable)
    slots = {key: allocate(spec.tensor) for key, spec in specs.items()}
    if slots:
        readings = [Reading(specs[key].name, slots[key]) for key in slots]
        after = store.marks.last(optimizer)
        wait = 0.0 if after is None else store.peer_seconds
        store.servers.call(variable.place.server, read(readings, after, wait))
    return slots


def replace_slots(
    store: RemoteStore,
    optimizer: str,
    variable: RemoteVariable,
    slots: Mapping[str, torch.Tensor],
) -> None:
    """Replace an optimizer's state for a variable; {} is none at all."""
    server = variable.place.server
    existing = _existing(store, optimizer, variable)
    if existing:
        names = [spec.name for spec in existing.values()]
        store.servers.call(server, delete(names))
    if slots:
        specs = [
            VariableSpec(
                name=_prefix(optimizer, variable) + key,
                tensor=spec_of(value),
                kind=VARIABLE_KIND_SLOT,
                slot_of=variable.name,
                device=variable.device_name,
            )
            for key, value in slots.items()
        ]
        store.servers.call(server, create(specs, list(slots.values())))


def _existing(
    store: RemoteStore, optimizer: str, variable: RemoteVariable
) -> dict[str, VariableSpec]:
    listing = store.servers.call(
        variable.place.server, list_variables([VARIABLE_KIND_SLOT])
    )
    prefix = _prefix(optimizer, variable)
    return {
        info.spec.name.removeprefix(prefix): info.spec
        for info in listing
        if info.spec.slot_of == variable.name and info.spec.name.startswith(prefix)
    }


def _prefix(optimizer: str, variable: RemoteVariable) -> str:
    return f"{variable.name}/{optimizer}/"

"""The state that servers keep for optimizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch

from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import RemoteVariable, by_server
from stratagem._ps_client.requests.reading import Reading
from stratagem._ps_client.requests.variables import create, delete, list_variables
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, VariableSpec
from stratagem_proto.wire.tensors import allocate, spec_of

Slots = Mapping[str, torch.Tensor]


def read_slots(
    store: RemoteStore, optimizer: str, variables: Sequence[RemoteVariable]
) -> list[dict[str, torch.Tensor]]:
    """Return an optimizer's state for variables, by torch's keys.

    Each server is asked once for what it has, and once for its values.
    """
    found: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    readings: dict[int, list[Reading]] = defaultdict(list)
    for server, specs in _existing(store, optimizer, variables).items():
        for spec in specs:
            value = allocate(spec.tensor)
            found[spec.slot_of][_key(spec, optimizer)] = value
            readings[server].append(Reading(spec.name, value))
    store.reads.after(store.step_tracker.after(optimizer), readings)
    return [found[variable.name] for variable in variables]


def replace_slots(
    store: RemoteStore, optimizer: str, slots: Mapping[RemoteVariable, Slots]
) -> None:
    """Replace an optimizer's state for variables; {} is none at all."""
    existing = _existing(store, optimizer, slots)
    store.servers.together(
        {server: delete([spec.name for spec in specs]) for server, specs in existing.items()}
    )
    specs: dict[int, list[VariableSpec]] = defaultdict(list)
    values: dict[int, list[torch.Tensor]] = defaultdict(list)
    for variable, state in slots.items():
        for key, value in state.items():
            specs[variable.place.server].append(_spec(optimizer, variable, key, value))
            values[variable.place.server].append(value)
    store.servers.together({server: create(specs[server], values[server]) for server in specs})


def _existing(
    store: RemoteStore, optimizer: str, variables: Iterable[RemoteVariable]
) -> dict[int, list[VariableSpec]]:
    """Return what servers keep for these variables, by server, unless nothing."""
    groups = by_server(variables)
    listings = store.servers.together(
        {server: list_variables([VARIABLE_KIND_SLOT]) for server in groups}
    )
    existing = {}
    for server, group in groups.items():
        names = {variable.name for variable in group}
        specs = [info.spec for info in listings[server] if info.spec.slot_of in names]
        existing[server] = [
            spec for spec in specs if spec.name.startswith(_prefix(spec, optimizer))
        ]
    return {server: specs for server, specs in existing.items() if specs}


def _spec(optimizer: str, variable: RemoteVariable, key: str, value: torch.Tensor) -> VariableSpec:
    spec = VariableSpec(
        tensor=spec_of(value),
        kind=VARIABLE_KIND_SLOT,
        slot_of=variable.name,
        device=variable.device_name,
    )
    spec.name = _prefix(spec, optimizer) + key
    return spec


def _key(spec: VariableSpec, optimizer: str) -> str:
    return spec.name.removeprefix(_prefix(spec, optimizer))


def _prefix(spec: VariableSpec, optimizer: str) -> str:
    return f"{spec.slot_of}/{optimizer}/"

"""The state of optimizers that workers step by themselves, which is kept with the variables.

It is slot variables beside those of the outer optimizer: of worker 1, "weight/SGD/exp_avg+1". So it
is in checkpoints, and moves and is replicated and divided as the variable is. So is what a
compression has lost of the last share, which is to come with the next one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch

from stratagem._cluster.tasks import Membership
from stratagem._core.variables import Variable
from stratagem._gradients import Compressor
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import (
    RemoteVariable,
    Slots,
    by_server,
    divided_slots,
    joined_slots,
    parts_of,
)
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.variables import Writing, assign, create, list_variables
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, Initializer, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET
from stratagem_proto.wire.tensors import allocate, spec_of

# Whether the rest is a state, 1 or 0: slot variables are made before there is any.
_IS_KEPT = "is_kept"

_RESIDUAL = "compression_residual"

_PAUSE_SECONDS = 0.05

_Named: TypeAlias = Mapping[RemoteVariable, Mapping[str, torch.Tensor]]
"""What slot variables have, by variable and by their names."""


def is_of_worker(slot: str) -> bool:
    """Whether a slot variable of this name is of a state that is a worker's own."""
    return "+" in slot.rpartition("/")[2]


def keys_of_worker(state: Slots, worker: int) -> dict[str, torch.Tensor]:
    """Return a worker's own state under the keys of slot variables."""
    return {f"{key}+{worker}": value for key, value in state.items()}


def own_state(slots: Slots, worker: int) -> dict[str, torch.Tensor]:
    """Return what slot variables have of a worker's own state; {} without any."""
    end = f"+{worker}"
    own = {key.removesuffix(end): value for key, value in slots.items() if key.endswith(end)}
    is_kept = own.pop(_IS_KEPT, None)
    own.pop(_RESIDUAL, None)
    return {} if is_kept is not None and not is_kept else own


def without_residuals(slots: Slots) -> dict[str, torch.Tensor]:
    """Return slot variables without what compression has lost in a cluster."""
    return {key: value for key, value in slots.items() if not key.startswith(f"{_RESIDUAL}+")}


class InnerStates:
    """What workers' own optimizers have on the servers.

    The chief makes the slot variables of all workers, since nobody else may.
    """

    def __init__(self, store: RemoteStore, membership: Membership) -> None:
        self._store, self._membership = store, membership
        # The slot variables that are known to exist.
        self._existing: set[str] = set()

    @property
    def _worker(self) -> int:
        return self._store.step_tracker.worker or 0

    def read(
        self, optimizer: str, shapes: Mapping[Variable, Slots], compressor: Compressor
    ) -> list[Slots]:
        """Return this worker's state for each variable; {} where there is none.

        Args:
            optimizer: The outer optimizer.
            shapes: By variable, what there is in a state, whose values do not matter.
            compressor: Goes on with the residuals that are there.
        """
        compressor.drop()
        parts = _of_parts(shapes, compressor)
        self._list(parts)
        if self._membership.creates:
            for worker in range(self._store.step_tracker.num_workers):
                self._make(_named(optimizer, parts, worker))
        found: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        readings: dict[int, list[Reading]] = defaultdict(list)
        for part, slots in parts.items():
            for name, like in _named(optimizer, {part: slots}, self._worker)[part].items():
                if name in self._existing:
                    value = allocate(spec_of(like))
                    found[part.name][name.rpartition("/")[2]] = value
                    readings[part.place.server].append(Reading(name, value))
        self._store.reads.after(self._store.step_tracker.after(optimizer), readings)
        by_part = {part: own_state(found[part.name], self._worker) for part in parts}
        for part in parts:
            residual = found[part.name].get(f"{_RESIDUAL}+{self._worker}")
            if residual is not None:
                compressor.keep(part.name, residual)
        return [joined_slots(variable, by_part) for variable in shapes]

    def write(
        self, optimizer: str, states: Mapping[Variable, Slots], compressor: Compressor
    ) -> None:
        """Replace the state for each variable, and the residuals.

        What a server applies of it is one request, the same when a counted step is repeated.

        Raises:
            FailedPreconditionError: There is more in a state than was known when it was prepared.
        """
        named = _named(optimizer, _of_parts(states, compressor), self._worker)
        self._await_made(named)
        for server, group in by_server(named).items():
            writings = [
                Writing(name, ASSIGN_MODE_SET, value)
                for part in group
                for name, value in named[part].items()
            ]
            if writings:
                self._store.servers.call_all({server: assign(writings)})

    def _make(self, named: _Named) -> None:
        for server, group in by_server(named).items():
            specs = [
                VariableSpec(
                    name=name,
                    tensor=spec_of(like),
                    kind=VARIABLE_KIND_SLOT,
                    slot_of=part.name,
                    device=part.device_name,
                    initializer=Initializer(constant=0.0),
                )
                for part in group
                for name, like in named[part].items()
                if name not in self._existing
            ]
            if specs:
                self._store.servers.call_all({server: create(specs, [])})
                self._existing |= {spec.name for spec in specs}

    def _await_made(self, named: _Named) -> None:
        """Wait until the chief has made the slot variables."""
        wanted = {name for slots in named.values() for name in slots}
        end = time.monotonic() + self._store.peer_seconds
        while missing := wanted - self._existing:
            self._list(named)
            if missing <= self._existing:
                return
            if self._membership.creates or time.monotonic() > end:
                raise FailedPreconditionError(
                    f"the state of an optimizer of LocalSteps is to be kept as {min(missing)!r}, "
                    "which was not prepared: the optimizer has more state than after its first "
                    "step, a parameter was frozen when LocalSteps was made, or the chief has not "
                    "made the same LocalSteps with keep_state"
                )
            time.sleep(_PAUSE_SECONDS)

    def _list(self, parts: Iterable[RemoteVariable]) -> None:
        """Learn which slot variables of some variables exist."""
        groups = by_server(parts)
        names = {part.name for group in groups.values() for part in group}
        answers = self._store.servers.call_all(
            {server: list_variables([VARIABLE_KIND_SLOT]) for server in groups}
        )
        gone = {one for one in self._existing if one.rsplit("/", 2)[0] in names}
        specs = [info.spec for answer in answers.values() for info in answer.variables]
        self._existing -= gone
        self._existing |= {one.name for one in specs if one.slot_of in names}


def _of_parts(
    states: Mapping[Variable, Slots], compressor: Compressor
) -> dict[RemoteVariable, Slots]:
    """Return the state for each part of variables, with whether it is one."""
    parts: dict[RemoteVariable, Slots] = {}
    for variable, state in states.items():
        _require_divisible(variable, state)
        divided = divided_slots(variable, state)
        for part, slots in zip(parts_of(variable), divided, strict=bool(state)):
            lost = compressor.kept(part.name, torch.zeros(part.shape, dtype=part.dtype))
            kept = slots if lost is None else {**slots, _RESIDUAL: lost}
            parts[part] = {**kept, _IS_KEPT: torch.ones(())} if kept else {}
    return parts


def _named(optimizer: str, parts: Mapping[RemoteVariable, Slots], worker: int) -> _Named:
    """Return a worker's state for parts by the names of slot variables."""
    return {
        part: {
            f"{part.name}/{optimizer}/{key}": value
            for key, value in keys_of_worker(slots, worker).items()
        }
        for part, slots in parts.items()
    }


def _require_divisible(variable: Variable, state: Slots) -> None:
    if len(parts_of(variable)) == 1:
        return
    for key, value in state.items():
        if value.dim() and value.shape[:1] != variable.shape[:1]:
            raise InvalidArgumentError(
                f"{variable.name!r} is in parts on several servers, and {key!r} of the optimizer's "
                f"state, of shape {tuple(value.shape)}, cannot be divided like it; leave "
                "keep_state out, or let the parameter be whole",
                variable=variable.name,
            )

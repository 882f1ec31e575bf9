"""The part of strategies whose variables are in this process: checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem._checkpoints.deferred import DeferredState, Restoration
from stratagem._checkpoints.entry import CheckpointEntry
from stratagem._core.contexts.context import cross_replica
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.variable import Variable
from stratagem._hosting.modules.adoption import Adoption
from stratagem._hosting.modules.extended import HostingExtended
from stratagem_proto.errors import NotFoundError
from stratagem_proto.programs.slot_names import SlotName

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class CheckpointedExtended(HostingExtended):
    """A `HostingExtended` that can save and restore what it holds.

    These are the variables that still live, those of modules included, the buffers
    that `state_dict()` of the modules would have, and the optimizers' state. A value
    is what it amounts to over all replicas, so that it fits under any strategy. What
    is made after a checkpoint was restored starts with its value there.

    A subclass provides `_stateful_optimizers()`.
    """

    def __init__(self, container_strategy: Strategy) -> None:
        super().__init__(container_strategy)
        self._deferred = DeferredState()

    def _stateful_optimizers(self) -> Iterable[str]:
        """Return the names of the optimizers that have state."""
        raise self._missing("_stateful_optimizers")

    # Saving.

    def _state_dict(self) -> dict[str, torch.Tensor]:
        self._before_replicas()
        state = {entry.name: entry.read() for entry in self._entries()}
        variables = self._variables()
        for optimizer in self._stateful_optimizers():
            found = self._slots(optimizer, variables)
            for variable, slots in zip(variables, found, strict=True):
                for key, value in slots.items():
                    state[str(SlotName(variable.name, optimizer, key))] = value
        return state

    def _variables(self) -> list[Variable]:
        hosted = [hosted.variable for hosted in self._parameters]
        owners = self._names.owners()
        return [*hosted, *(one for one in owners if isinstance(one, Variable))]

    def _entries(self) -> list[CheckpointEntry]:
        return [
            *map(CheckpointEntry.of_variable, self._variables()),
            *(CheckpointEntry.of_tensor(*named) for named in self._adopter.buffers),
        ]

    # Restoring.

    def _load_state_dict(
        self, state: Mapping[str, torch.Tensor], strict: bool
    ) -> Restoration:
        self._before_replicas()
        entries = self._entries()
        if strict:
            _require_all(entries, state)
        present = [entry for entry in entries if entry.name in state]
        for entry in present:
            entry.require_fit(state[entry.name])
        self._deferred.replace(state)
        for entry in present:
            self._deferred.restore(entry)
        for variable in self._variables():
            if variable.name in state:
                # State that was not saved was not there yet.
                self._restore_slots(variable, self._stateful_optimizers())
        # The parameters of modules are to have the values at once.
        self._before_replicas()
        return Restoration(self._deferred)

    def _restore_slots(
        self, variable: Variable, optimizers: Iterable[str] = ()
    ) -> None:
        slots = self._deferred.take_slots(variable.name)
        for optimizer in {*slots, *optimizers}:
            self._set_slots(optimizer, {variable: slots.get(optimizer, {})})

    # What is made later.

    def _create_in_scope(self, next_creator: NextCreator, **kwargs: Any) -> Any:
        variable = super()._create_in_scope(next_creator, **kwargs)
        with cross_replica(self._container_strategy()):
            self._deferred.restore(CheckpointEntry.of_variable(variable))
        self._restore_slots(variable)
        return variable

    def _host_across_replicas(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            self._deferred.restore(
                CheckpointEntry.of_tensor(adoption.name, adoption.parameter)
            )
        super()._host_across_replicas(adoptions)
        fresh = {adoption.name for adoption in adoptions}
        for hosted in self._parameters:
            if hosted.name in fresh:
                self._restore_slots(hosted.variable)

    def _host_buffers(self, roots: Sequence[nn.Module]) -> None:
        for named in self._adopter.buffers:
            self._deferred.restore(CheckpointEntry.of_tensor(*named))
        super()._host_buffers(roots)


def _require_all(
    entries: Sequence[CheckpointEntry], state: Mapping[str, torch.Tensor]
) -> None:
    missing = [entry.name for entry in entries if entry.name not in state]
    if missing:
        raise NotFoundError(
            f"the checkpoint has no {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, sorted(state))) or 'nothing'}. Restore into the "
            "program that was saved, or pass strict=False to leave what it lacks as "
            "it is"
        )

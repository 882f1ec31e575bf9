"""Optimizers whose steps the servers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stratagem._core.variables.variable import Variable
from stratagem._gradients.compressor import Compressor
from stratagem._gradients.step import GradientOverlap, OptimizerStep
from stratagem._parameter_server.hosting import slots as _remote_slots
from stratagem._parameter_server.hosting import steps as _remote_steps
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.pushing.server_batches import OverlappedPush
from stratagem._parameter_server.remote_variables import RemoteVariables
from stratagem._parameter_server.tables.variable import require_whole_state
from stratagem._parameter_server.variables.split_variable import divided_slots, joined_slots
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem.consistency import Consistency

Slots = Mapping[str, torch.Tensor]


class RemoteOptimizers:
    """Steps of optimizers on servers, and the optimizers' state there.

    Args:
        store: The variables on the servers.
        variables: Knows which of them are the strategy's.
    """

    def __init__(self, store: RemoteStore, variables: RemoteVariables) -> None:
        self._store = store
        self._variables = variables
        self._overlaps: dict[str, OverlappedPush] = {}
        self._stepped: set[str] = set()

    def add(self, name: str, consistency: Consistency | None = None) -> None:
        """Take an optimizer in.

        Args:
            name: Its name.
            consistency: What holds workers together in its steps; None for what the strategy says.
        """
        if consistency is not None:
            self._store.servers.require_visible(self._store.first)
        self._store.step_tracker.add(name, consistency)

    def begin_run(self) -> None:
        """Note that none has taken a step in the run that begins."""
        self._stepped.clear()

    def apply(self, step: OptimizerStep) -> bool:
        """Carry out a step; return whether the parameters have its values already."""
        self._divide_run(step.optimizer)
        return _remote_steps.take(self._store, step, self._overlaps.get(step.optimizer))

    def _divide_run(self, optimizer: str) -> None:
        """Have another step begin for checkpoints, where the loop of a run begins anew.

        A run that steps each optimizer once at most is one step with all that it does.
        """
        if optimizer in self._stepped:
            self._stepped.clear()
            self._store.servers.steps.divide()
        self._stepped.add(optimizer)

    def await_values(self, step: OptimizerStep) -> None:
        """Wait until the parameters have the values that a step has made."""
        self._store.ends.wait(self._store.routes.of(step).copies)

    def overlap(self, optimizer: str, compressor: Compressor) -> GradientOverlap:
        """Return where the gradients of an optimizer go early."""
        self._overlaps[optimizer] = OverlappedPush(self._store.servers, optimizer, compressor)
        return self._overlaps[optimizer]

    def rejected(self, optimizer: str) -> int:
        """Return how many steps the servers dropped, for gradients not finite."""
        return self._store.reads.rejected.get(optimizer, 0)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        """Read the state for each variable, by torch's keys."""
        require_whole_state(variables)
        parts = [part for one in variables for part in self._variables.own_parts(one)]
        found = _remote_slots.read_slots(self._store, optimizer, parts)
        by_part = dict(zip(parts, found, strict=True))
        return [joined_slots(variable, by_part) for variable in variables]

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        """Replace the state for variables."""
        require_whole_state(slots)
        shares: dict[RemoteVariable, Slots] = {}
        for variable, state in slots.items():
            parts = self._variables.own_parts(variable)
            shares |= zip(parts, divided_slots(variable, state), strict=True)
        _remote_slots.replace_slots(self._store, optimizer, shares)

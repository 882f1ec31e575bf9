"""The part of a strategy whose optimizers step on servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stratagem._core.variables.variable import Variable
from stratagem._gradients.compressor import Compressor
from stratagem._gradients.gradient_overlap import GradientOverlap
from stratagem._gradients.step import OptimizerStep
from stratagem._parameter_server.checkpoints.checkpoints import ClusterCheckpoints
from stratagem._parameter_server.consistencies import decoded, encoded
from stratagem._parameter_server.hosting import slots as _remote_slots
from stratagem._parameter_server.hosting import steps as _remote_steps
from stratagem._parameter_server.hosting.local_writes import (
    refuse_writes_in_replicas,
)
from stratagem._parameter_server.hosting.trainers import Trainers
from stratagem._parameter_server.pushing.overlapped_push import OverlappedPush
from stratagem._parameter_server.remote_values import RemoteValues
from stratagem._parameter_server.tables.variable import require_whole_state
from stratagem._parameter_server.variables.split_variable import (
    divided_slots,
    joined_slots,
)
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._ps_client.requests.consistency import change, describe
from stratagem.consistency import Consistency, ConsistencyReport


class RemoteOptimizers(RemoteValues):
    """Steps of optimizers, their state, and what holds workers together in them.

    Attributes:
        _checkpoints: What is told of this worker where it has taken a step.
        _stepped: The optimizers that have taken one in the present part of a run.
        _trainers: The threads that take them.
    """

    _checkpoints: ClusterCheckpoints

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._overlaps: dict[str, OverlappedPush] = {}
        self._stepped: set[str] = set()
        self._trainers = Trainers()

    def _name_optimizer(
        self, class_name: str, consistency: Consistency | None = None
    ) -> str:
        name = super()._name_optimizer(class_name)
        declared = None if consistency is None else encoded(consistency)
        if declared is not None:
            self._store.servers.require_visible(self._store.first)
        self._store.step_tracker.add(name, declared)
        self._trainers.add_this()
        return name

    def _set_consistency(self, consistency: Consistency, optimizer: str | None) -> None:
        step_tracker = self._store.step_tracker
        if optimizer is not None:
            step_tracker.require(optimizer)
        if not self._membership.creates:
            return
        for name in step_tracker.optimizers if optimizer is None else [optimizer]:
            self._store.announce(name)
            self._store.servers.call(
                self._store.first, change(name, encoded(consistency))
            )

    def _consistency_report(self) -> dict[str, ConsistencyReport]:
        groups = self._store.ask_first(describe())
        return {group.group: decoded(group) for group in groups}

    def _apply_gradients(self, step: OptimizerStep) -> None:
        self._membership.require_trainer()
        self._trainers.add_this()
        # What the step makes would take the place of what was written.
        refuse_writes_in_replicas(self._store, self._parameters)
        self._divide_run(step.optimizer)
        is_fresh = _remote_steps.take(
            self._store, step, self._overlaps.get(step.optimizer)
        )
        self._forget_rows(step)
        self._checkpoints.states.ran()
        if not is_fresh:
            self._store.ends.wait(self._store.routes.of(step).copies)

    def _divide_run(self, optimizer: str) -> None:
        """Have another step begin for checkpoints, where the loop of a run begins anew.

        A run that steps each optimizer once at most is one step with all that it does.
        """
        if optimizer in self._stepped:
            self._stepped.clear()
            with self._store.servers.steps.pausing():
                pass
        self._stepped.add(optimizer)

    def _overlapped_push(
        self, optimizer: str, compressor: Compressor
    ) -> GradientOverlap:
        self._require_one_replica("overlap=True")
        self._overlaps[optimizer] = OverlappedPush(
            self._store.servers, optimizer, compressor
        )
        return self._overlaps[optimizer]

    def _rejected_steps(self, optimizer: str) -> int:
        return self._store.reads.rejected.get(optimizer, 0)

    def _slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        require_whole_state(variables)
        parts = [part for one in variables for part in self._own_parts(one)]
        found = _remote_slots.read_slots(self._store, optimizer, parts)
        by_part = dict(zip(parts, found, strict=True))
        return [joined_slots(variable, by_part) for variable in variables]

    def _set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        self._membership.require_creator(f"the state of optimizer {optimizer!r}")
        require_whole_state(slots)
        shares: dict[RemoteVariable, Mapping[str, torch.Tensor]] = {}
        for variable, state in slots.items():
            divided = divided_slots(variable, state)
            shares |= zip(self._own_parts(variable), divided, strict=True)
        _remote_slots.replace_slots(self._store, optimizer, shares)

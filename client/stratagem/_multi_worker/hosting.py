"""Modules and optimizers whose steps all workers take together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stratagem._core.enums import ReduceOp
from stratagem._core.values.cross_device_ops import CrossDeviceOps
from stratagem._core.values.regroup import select_replica
from stratagem._core.variables.variable import Variable
from stratagem._gradients.step import OptimizerStep
from stratagem._hosting.elsewhere import MadeElsewhere
from stratagem._hosting.hosting import Slots
from stratagem._hosting.modules.adoption import Adoption
from stratagem._local.copies import CopiesHosting, Unite
from stratagem._multi_worker.gradients import StepsTogether, mean
from stratagem._multi_worker.group import WorkerGroup
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import VariableNotFoundError


class WorkersHosting(CopiesHosting):
    """Keeps copies on the devices of all workers, which start as the chief's."""

    def __init__(
        self,
        extended: StrategyExtended,
        names: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        unite: Unite,
        steps: StepsTogether,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, names, cross_device_ops, unite, elsewhere)
        self._group = steps.group
        self._steps = steps
        self._written = ""

    # Modules start as the chief's.

    def host(self, adoptions: Sequence[Adoption]) -> None:
        self._group.agree("A parameter", [_form(adoption) for adoption in adoptions])
        follow_chief(self._group, [adoption.parameter for adoption in adoptions])
        super().host(adoptions)

    def host_buffers(self, roots: Sequence[nn.Module]) -> None:
        buffers = [buffer for root in roots for buffer in root.buffers()]
        forms = [[str(each.dtype), list(each.shape)] for each in buffers]
        if roots:
            self._group.agree("A buffer of modules", forms)
            follow_chief(self._group, buffers)
        super().host_buffers(roots)

    # Steps.

    def before_replicas(self) -> None:
        for hosted in self.parameters.written_locally():
            self._note_written(hosted.name, hosted.parameter)
        super().before_replicas()

    def _note_written(self, name: str, value: torch.Tensor) -> None:
        content = f"{self._written} {name} ".encode() + _content(value)
        self._written = hashlib.sha256(content).hexdigest()

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        super().set_slots(optimizer, slots)
        for variable, state in slots.items():
            for key, value in sorted(state.items()):
                self._note_written(f"{optimizer} {variable.name} {key}", value)

    def apply_gradients(self, step: OptimizerStep) -> None:
        joined = self._steps.joined(step, self._written, self._find)
        super().apply_gradients(joined)

    def reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        local = super().reduced_gradients(step._replace(reduce_op=ReduceOp.SUM))
        totals = [select_replica(0, gradient) for gradient in local]
        return [mean(step, total) for total in self._steps.summed(totals)]

    def _find(self, name: str) -> Variable:
        for variable in self.variables():
            if variable.name == name:
                return variable
        raise VariableNotFoundError(
            f"{self._group.place.name} has no variable {name!r}, for which another "
            "worker has a gradient; build the same modules on all workers",
            variable=name,
        )


def follow_chief(group: WorkerGroup, tensors: Sequence[torch.Tensor]) -> None:
    """Give tensors the chief's values."""
    with torch.no_grad():
        for mine, chief in zip(tensors, group.spread(tensors), strict=True):
            mine.copy_(chief)


def _form(adoption: Adoption) -> list[Any]:
    """Return what of a parameter has to be equal on all workers."""
    parameter = adoption.parameter
    kind = [str(parameter.dtype), list(parameter.shape), parameter.requires_grad]
    return [adoption.name, *kind, adoption.module_path]


def _content(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()

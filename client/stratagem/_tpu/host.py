"""A strategy on one of its hosts: the part of the replicas that run there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.constants import default_pg_timeout
from torch.nn import Parameter

from stratagem._cluster.spec import ClusterSpec
from stratagem._core.device_names import torch_device
from stratagem._core.distributed_variables.mirrored import MirroredVariable, copy_name
from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.enums import VariableAggregation, VariableSynchronization
from stratagem._core.options import CommunicationOptions
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.local import LocalVariable
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem._hosting.elsewhere import MadeElsewhere
from stratagem._hosting.hosting import living_hostings
from stratagem._hosting.modules.adoption import Adoption
from stratagem._multi_worker.extended import MultiWorkerMirroredExtended
from stratagem._multi_worker.group import WorkerGroup
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.cores import CoresExtended, CoresStrategy
from stratagem._tpu.meeting_point import take_meeting_point
from stratagem._tpu.topology import HostPlan, Topology
from stratagem._tpu.valued import Marks, Valued, variable_of, write
from stratagem.cluster_resolver import SimpleClusterResolver


@dataclass(frozen=True)
class VariableForm:
    """A variable without its value.

    Attributes:
        traits: What it is called and used for.
        dtype: Its element type.
        shape: Its shape.
    """

    traits: VariableTraits
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, variable: Variable) -> VariableForm:
        """Return that of a variable."""
        return cls(variable._traits, variable.dtype, tuple(variable.shape))

    def blank(self, device: str) -> torch.Tensor:
        """Return a tensor of zeros of this form."""
        return torch.zeros(self.shape, dtype=self.dtype, device=torch_device(device))

    @property
    def requires_grad(self) -> bool:
        """Whether gradients with respect to it are wanted, and exist."""
        differentiable = self.dtype.is_floating_point or self.dtype.is_complex
        return self.traits.trainable and differentiable


class HostExtended(CoresExtended, MultiWorkerMirroredExtended):
    """The `extended` of a `TPUStrategy` on a host."""

    def __init__(self, container_strategy: Strategy, plan: HostPlan, task: int) -> None:
        devices, seconds = plan.devices_of(task), default_pg_timeout.total_seconds()
        group = WorkerGroup(plan.place_of(task), seconds, f"{len(devices)} cores")
        self._elsewhere = MadeElsewhere(group.place.name)
        options = CommunicationOptions()
        MultiWorkerMirroredExtended.__init__(
            self, container_strategy, group, devices, options
        )
        self._steps_per_run = plan.steps_per_run
        self._hosts = plan.topology
        self._job = plan.topology.job
        self._marks = Marks()
        # Others meet there while it lives.
        self._meeting_point = take_meeting_point(plan.meeting_point)

    @property
    def _topology(self) -> Topology:
        return self._hosts

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def group(self) -> WorkerGroup:
        """All hosts."""
        return self._group

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        assert self._elsewhere is not None
        raise self._elsewhere.refusal(f"a variable, {kwargs['name']!r}")

    # What the program has made.

    def attach_variable(self, form: VariableForm) -> Variable:
        """Return a variable with a copy on each core of this host."""
        name, traits = form.traits.name, form.traits
        copies = [
            LocalVariable.over(
                form.blank(device).requires_grad_(form.requires_grad),
                replace(traits, name=copy_name(name, number)),
                device,
            )
            for number, device in enumerate(self._devices)
        ]
        on_read = traits.synchronization is VariableSynchronization.ON_READ
        kind = SyncOnReadVariable if on_read else MirroredVariable
        variable = kind(self._container_strategy(), copies)
        self._names.record(name, variable)
        living_hostings.add(self._hosting)  # optimizers look for what `value` returns
        return variable

    def attach_parameter(self, form: VariableForm) -> Parameter:
        """Return a parameter with a leaf on each core of this host."""
        parameter = Parameter(form.blank(self._devices[0]), form.requires_grad)
        self._hosting.host_one(Adoption(form.traits.name, parameter, (), ""))
        self._names.record(form.traits.name, parameter)
        return parameter

    # What the program is told, and tells.

    def write(self, valued: Valued, value: torch.Tensor) -> None:
        """Give all copies here a value."""
        write(valued, value)
        self._mark(variable_of(valued))

    def changed_values(self, state: Sequence[Valued]) -> dict[int, torch.Tensor]:
        """Return what has changed since the program has heard of it, by position.

        All hosts have to call it; the first one returns something.
        """
        variables = enumerate(map(variable_of, state))
        values = {position: self._changed(each) for position, each in variables}
        chief = self._group.place.is_chief
        return {
            position: value
            for position, value in values.items()
            if chief and value is not None
        }

    def _changed(self, variable: Variable) -> torch.Tensor | None:
        if isinstance(variable, SyncOnReadVariable):
            readable = variable.aggregation is not VariableAggregation.NONE
            return variable._saved_value() if readable else None
        value = variable.values[0].value().detach()
        if not self._marks.is_new(variable, value):
            return None
        self._marks.mark(variable, value)
        return value

    def _mark(self, variable: Variable) -> None:
        self._marks.mark(variable, variable.values[0].value())

    def buffers_of(
        self, modules: Sequence[nn.Module]
    ) -> dict[tuple[int, str], torch.Tensor]:
        """Return the buffers of the first core, by position of the module and key."""
        return {
            (position, key): buffer
            for position, module in enumerate(modules)
            for key, buffer in module._buffers.items()
            if buffer is not None
        }

    def close(self) -> None:
        """Leave the other hosts."""
        self._group.leave()
        self._meeting_point = None


def host_strategy(cls: type[CoresStrategy], plan: HostPlan, task: int) -> CoresStrategy:
    """Return a program's strategy as one of its hosts has it.

    Args:
        cls: The class of the program's strategy.
        plan: What all hosts know.
        task: Which of them this is.
    """
    made = cls.__new__(cls)
    extended = HostExtended(made, plan, task)
    extended._cluster_resolver = SimpleClusterResolver(
        ClusterSpec(plan.cluster), task_type=plan.topology.job, task_id=task
    )
    # Not as the class does: its arguments describe hosts.
    CoresStrategy.__init__(made, extended)
    return made


def extended_here(strategy: Strategy) -> HostExtended:
    """Return the `extended` of a strategy on this host."""
    assert isinstance(strategy.extended, HostExtended)
    return strategy.extended

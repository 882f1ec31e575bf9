"""A strategy on one of its hosts: the replicas that run there, and what they do in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.constants import default_pg_timeout
from torch.nn import Parameter

from stratagem._cluster.tasks import ClusterSpec
from stratagem._core.contexts import entered
from stratagem._core.device_names import torch_device
from stratagem._core.distributed_variables import MirroredVariable, SyncOnReadVariable, copy_name
from stratagem._core.options import (
    CommunicationOptions,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core.variable_creation import VariableTraits
from stratagem._core.variables import LocalVariable, Variable
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosting import MadeElsewhere, living_hostings
from stratagem._local.hosting import CopiesHosting
from stratagem._local.mirrored import CopiesExtended
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.strategy import WorkersReplicas
from stratagem._shipping.outcome_forms import form_of_hosts
from stratagem._strategies.multi_step import MultiStepContext, run_steps
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.cores import (
    CoresExtended,
    CoresStrategy,
    HostInput,
    HostPlan,
    LocalCores,
    StaticShapes,
)
from stratagem._tpu.values import (
    OUT_OF_STEP,
    HostAnswer,
    LoopOutputs,
    Marks,
    Parts,
    Valued,
    failure_of,
    variable_of,
    write,
)
from stratagem.cluster_resolver import SimpleClusterResolver


@dataclass(frozen=True)
class VariableForm:
    """A variable without its value."""

    traits: VariableTraits
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def from_variable(cls, variable: Variable) -> VariableForm:
        return cls(variable._traits, variable.dtype, tuple(variable.shape))

    def blank(self, device: str) -> torch.Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=torch_device(device))

    @property
    def requires_grad(self) -> bool:
        """Whether the variable is trained and its dtype is differentiable."""
        differentiable = self.dtype.is_floating_point or self.dtype.is_complex
        return self.traits.trainable and differentiable


class HostCores(LocalCores):
    """The cores of this host, which step together with those of all hosts, the `group`."""

    replicas: WorkersReplicas

    def __init__(self, extended: CopiesExtended, plan: HostPlan, task: int) -> None:
        place, devices = plan.place_of(task), plan.devices_of(task)
        seconds = default_pg_timeout.total_seconds()
        self.group = WorkerGroup(place, seconds, f"{len(devices)} cores")
        elsewhere, options = MadeElsewhere(place.name), CommunicationOptions()
        replicas = WorkersReplicas(devices, self.group, options, elsewhere)
        super().__init__(extended, plan.topology, replicas)
        self._marks = Marks()
        # The other hosts find each other there as long as this object lives.
        self._meeting_point = take_meeting_point(plan.meeting_point)

    @property
    def hosting(self) -> CopiesHosting:
        """The parameters of modules on this host, and their optimizers."""
        return self.extended._hosting

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
            for number, device in enumerate(self.devices)
        ]
        on_read = traits.synchronization is VariableSynchronization.ON_READ
        kind = SyncOnReadVariable if on_read else MirroredVariable
        variable = kind(self.extended._container_strategy(), copies)
        self.extended._names.record(name, variable)
        living_hostings.add(self.hosting)  # optimizers look for what `value` returns
        return variable

    def attach_parameter(self, form: VariableForm) -> Parameter:
        """Return a parameter with a leaf on each core of this host."""
        parameter = Parameter(form.blank(self.devices[0]), form.requires_grad)
        self.hosting.host_one(Adoption(form.traits.name, parameter, (), ""))
        self.extended._names.record(form.traits.name, parameter)
        return parameter

    # What the program is told, and tells.

    def write(self, valued: Valued, value: torch.Tensor) -> None:
        write(valued, value)
        variable = variable_of(valued)
        self._marks.mark(variable, variable.values[0].value())

    def changed_values(self, state: Sequence[Valued]) -> dict[int, torch.Tensor]:
        """Return the values that the program does not know, by position in `state`.

        All hosts have to call this, since they read variables together; the values are those of the
        first host.
        """
        variables = enumerate(map(variable_of, state))
        values = {position: self._changed(each) for position, each in variables}
        chief = self.group.place.is_chief
        return {
            position: value for position, value in values.items() if chief and value is not None
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

    def close(self) -> None:
        self.group.leave()
        self._meeting_point = None


def host_strategy(cls: type[CoresStrategy], plan: HostPlan, task: int) -> CoresStrategy:
    """Return what a program's strategy, of class `cls`, is on one of its hosts."""
    made = cls.__new__(cls)
    resolver = SimpleClusterResolver(
        ClusterSpec(plan.cluster), task_type=plan.topology.job, task_id=task
    )
    cores = partial(HostCores, plan=plan, task=task)
    # The constructor of `cls` takes arguments that describe hosts.
    CoresStrategy.__init__(made, CoresExtended(made, cores, resolver, plan.steps_per_run))
    return made


def host_of(strategy: Strategy) -> HostCores:
    extended = strategy.extended
    assert isinstance(extended, CoresExtended)
    assert isinstance(extended._cores, HostCores)
    return extended._cores


# Hosts find each other in a store that the first one serves.

_open: dict[int, TCPStore] = {}


def open_meeting_point() -> int:
    """Serve a store on a free port of this host, and return the port.

    The store is served as long as what `take_meeting_point` returns is alive.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    _open[store.port] = store
    return store.port


def take_meeting_point(address: str) -> TCPStore | None:
    """Return the store that this process serves at a "host:port"; None for another."""
    port = address.rpartition(":")[2]
    return _open.pop(int(port), None) if port else None


@dataclass(frozen=True)
class Writes:
    """What the program has changed since the previous call."""

    values: Mapping[int, torch.Tensor] = field(default_factory=dict)
    slots: Sequence[tuple[str, int, Mapping[str, torch.Tensor]]] = ()


def carry_out(
    strategy: Strategy,
    state: Sequence[Valued],
    modules: Sequence[nn.Module],
    writes: Writes,
    work: Callable[[], Any],
    is_trusted: bool = False,
) -> Parts:
    """Do the work of a call, in the strategy's cross-replica context; return a `HostAnswer`.

    The `state` are all variables and parameters, the modules those that have buffers. The result
    and the exception are pickled for a program by which the host `is_trusted`.
    """
    host, outcomes = host_of(strategy), form_of_hosts(is_trusted)
    with entered(strategy):
        for position, value in writes.values.items():
            host.write(state[position], value)
        for optimizer, position, slots in writes.slots:
            host.hosting.set_slots(optimizer, {variable_of(state[position]): slots})
        result, error = b"", None
        try:
            result = outcomes.dump(work())
        except Exception as raised:
            error = raised
        in_step = _end_together(host.group, error)
        chief = host.group.place.is_chief and in_step
        return HostAnswer(
            result,
            failure_of(error, outcomes) if error else None,
            in_step,
            host.changed_values(state) if in_step else {},
            _buffers_of(modules) if chief else {},
        ).encode()


def _buffers_of(modules: Sequence[nn.Module]) -> dict[tuple[int, str], torch.Tensor]:
    """Return the buffers of the first core, by position of the module and key."""
    return {
        (position, key): buffer
        for position, module in enumerate(modules)
        for key, buffer in module._buffers.items()
        if buffer is not None
    }


def _end_together(group: WorkerGroup, error: BaseException | None) -> bool:
    """Return whether all hosts have ended their work, with or without an error."""
    if isinstance(error, OUT_OF_STEP):
        return False
    try:
        group.exchange("The end of a call", None)
    except OUT_OF_STEP:
        return False
    return True


# What calls are for.


def nothing() -> None:
    """Do no work, in a call that only carries what has changed."""


def loop(
    strategy: Strategy,
    step: Callable[[MultiStepContext, Any], Any],
    inputs: HostInput,
    iterations: int,
) -> Parts:
    """Call a step once for each input, which this host reads; return `LoopOutputs`."""
    context = run_steps(strategy, step, StaticShapes(inputs), iterations, None)
    return LoopOutputs.collect(strategy, context).encode()


def run(
    strategy: Strategy, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Call a function once for each core of this host, and return all results."""
    result = strategy.run(function, args, kwargs)
    return strategy.experimental_local_results(result)


def read_slots(
    strategy: Strategy, optimizer: str, trained: Sequence[Valued]
) -> list[Mapping[str, torch.Tensor]]:
    return [*host_of(strategy).hosting.slots(optimizer, [*map(variable_of, trained)])]


def optimizers_with_state(strategy: Strategy) -> list[str]:
    return [*host_of(strategy).hosting.stateful_optimizers()]

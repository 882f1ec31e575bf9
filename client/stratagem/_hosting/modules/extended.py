"""The part that strategies share which turn plain modules into variables."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import nn

from stratagem._core.contexts.context import cross_replica
from stratagem._core.contexts.scope import entered
from stratagem._core.device_names import torch_device
from stratagem._core.variables.variable import Variable
from stratagem._gradients.compressor import Compressor
from stratagem._gradients.gradient_overlap import GradientOverlap
from stratagem._gradients.step import OptimizerStep
from stratagem._hosting.modules.adoption import Adoption, ModuleAdopter
from stratagem._hosting.modules.registry import ParameterRegistry
from stratagem._hosting.modules.replica_buffers import BufferRegistry
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy
    from stratagem.consistency import Consistency


class LivingExtended:
    """Those of the strategies of this process that were used and still live."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: WeakSet[HostingExtended] = WeakSet()

    def add(self, extended: HostingExtended) -> None:
        """Take one in."""
        with self._lock:
            self._found.add(extended)

    def __iter__(self) -> Iterator[HostingExtended]:
        with self._lock:
            return iter(list(self._found))


class HostingExtended(StrategyExtended):
    """A `StrategyExtended` that hosts modules built in its scope.

    Besides what every strategy provides, a subclass provides, in the order in
    which a program meets them:

    - `_host(adoptions)`: when a scope closes, or before what it built is needed.
    - `_before_replicas()`: calls this class's; then carries local writes to the
      variables (`self._parameters.written_locally()`), and newer values of the
      variables into the parameters (`HostedParameter.write`).
    - `_apply_gradients(step)`: when the replicas meet in an optimizer's step.
    - `_slots`, `_set_slots`: for `state_dict` and `load_state_dict`.

    Buffers, such as the statistics of `nn.BatchNorm1d`, are not hosted: each replica
    has its own, and those of each process's first replica last (`BufferRegistry`).
    """

    def __init__(self, container_strategy: Strategy) -> None:
        super().__init__(container_strategy)
        self._optimizers: Counter[str] = Counter()

    @cached_property
    def _parameters(self) -> ParameterRegistry:
        """The hosted parameters."""
        return ParameterRegistry(self._local_devices())

    @cached_property
    def _buffers(self) -> BufferRegistry:
        """The buffers of hosted modules."""
        return BufferRegistry(self._local_devices())

    def _local_devices(self) -> list[torch.device]:
        local = self.worker_devices[: self._num_local_replicas]
        return [torch_device(device) for device in local]

    @cached_property
    def _adopter(self) -> ModuleAdopter:
        return ModuleAdopter(
            self._names,
            self._parameters,
            self._host_across_replicas,
            self._host_buffers,
            self._prepare,
        )

    def _scope_resources(self, name: str | None) -> AbstractContextManager[object]:
        living_extended.add(self)
        return self._adopter.watching(name)

    def _before_replicas(self) -> None:
        living_extended.add(self)
        self._adopter.adopt()
        self._buffers.follow_first()

    @property
    def _trains_in_place(self) -> bool:
        """Whether an optimizer of torch may step the parameters themselves."""
        return self._num_replicas_in_sync == 1

    def _step_outside_of_runs(self, step: Callable[[], None]) -> None:
        """Take an optimizer's step for the loop of a program that does without `run`.

        Args:
            step: What the only replica of this process does.
        """
        with entered(self._container_strategy()):
            self._before_lone_step()
            self._call_for_each_replica(step, (), {})

    def _before_lone_step(self) -> None:
        """Carry the user's writes to the variables, and leave the parameters alone.

        A graph that is still to be differentiated may need them as they are.
        """
        self._before_replicas()

    def _host_buffers(self, roots: Sequence[nn.Module]) -> None:
        """Take care of the buffers of modules and their parts."""
        self._buffers.add(part for root in roots for part in root.modules())

    def _prepare(self, adoption: Adoption) -> None:
        """Make another kind of parameter of one that is to be adopted, in its place."""

    def _variable_seen_as(self, tensor: torch.Tensor) -> Variable | None:
        """Return the variable whose `value()` is this tensor, in any replica."""
        for owner in self._names.owners():
            if isinstance(owner, Variable) and owner._is_seen_as(tensor):
                return owner
        return None

    def _host_across_replicas(self, adoptions: Sequence[Adoption]) -> None:
        # A lazy module may turn up in the midst of a replica's forward.
        with cross_replica(self._container_strategy()):
            self._host(adoptions)

    def _name_optimizer(
        self, class_name: str, consistency: Consistency | None = None
    ) -> str:
        """Return a name for the next optimizer of a class: "Adam", then "Adam_1".

        Names are never used again: the slot variables of an optimizer outlive it.

        Args:
            class_name: The class.
            consistency: What holds workers together in its steps; None for what the
                strategy says.

        Raises:
            InvalidArgumentError: The strategy leaves no choice.
        """
        if consistency is not None:
            raise InvalidArgumentError(
                f"{class_name} is given the consistency {consistency}, but under "
                f"{type(self._container_strategy()).__name__} all replicas are always "
                "in sync; leave it out, or use ParameterServerStrategy"
            )
        number = self._optimizers[class_name]
        self._optimizers[class_name] += 1
        return f"{class_name}_{number}" if number else class_name

    def _overlapped_push(
        self, optimizer: str, compressor: Compressor
    ) -> GradientOverlap | None:
        """Return where an optimizer's gradients may go early; None if nowhere.

        Raises:
            InvalidArgumentError: They cannot, because they have to be reduced first.
        """
        return None

    def _rejected_steps(self, optimizer: str) -> int:
        """Return how many steps of an optimizer were dropped outside of this process.

        For gradients that are not finite. Most strategies drop them themselves.
        """
        return 0

    def _host(self, adoptions: Sequence[Adoption]) -> None:
        """Make variables of parameters.

        Called in cross-replica context, possibly while a replica waits in the
        forward of a lazy module. Once this returns, each parameter is in
        `self._parameters` and equal to its variable.

        Args:
            adoptions: Parameters, with names that are unique and recorded.
        """
        raise self._missing("_host")

    def _apply_gradients(self, step: OptimizerStep) -> None:
        """Carry out a step of an optimizer.

        Called in cross-replica context, once for all replicas of this process,
        also if none of them has a gradient. The gradients are the `.grad` of the
        leaves: they may be read after this returns, and must not be changed.
        """
        raise self._missing("_apply_gradients")

    def _slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        """Return the optimizer's state for each variable, by torch's keys.

        It is empty where there is none yet. The tensors are on the CPU, or where
        the optimizer keeps them, and are the caller's.
        """
        raise self._missing("_slots")

    def _set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        """Replace the optimizer's state for variables; {} is none at all."""
        raise self._missing("_set_slots")


living_extended = LivingExtended()

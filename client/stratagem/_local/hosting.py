"""Modules, optimizers and checkpoints of strategies whose variables are all in this process."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import Parameter

from stratagem._checkpoints.restoring import (
    CheckpointEntry,
    DeferredState,
    RestoreStatus,
    origins_in,
    with_origins,
)
from stratagem._core.contexts import cross_replica
from stratagem._core.device_names import torch_device
from stratagem._core.distributed_values import PerReplica, select_replica
from stratagem._core.names import (
    Confusion,
    Origin,
    Origins,
    batches_of,
    doubtful,
    exchanged,
    lacking,
    surplus,
)
from stratagem._core.reduction import CrossDeviceOps
from stratagem._core.variable_creation import VariableTraits
from stratagem._core.variables import LocalVariable, Variable
from stratagem._gradients import OptimizerStep, VariableGradients
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.hosting import Hosting, MadeElsewhere, Slots
from stratagem._local.optimizers import LocalOptimizers
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import ContextError, InvalidArgumentError, NotFoundError
from stratagem_proto.programs.optimizers import SlotName

if TYPE_CHECKING:
    from stratagem._checkpoints.alone import AloneCheckpoints, Held
    from stratagem_storage.checkpoint.folder import Checkpoint


class LocalHosting(Hosting):
    """Hosts modules in this process, and steps torch's optimizers in it."""

    def __init__(
        self,
        extended: StrategyExtended,
        devices: Sequence[torch.device],
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, devices, elsewhere)
        self.optimizers: LocalOptimizers = LocalOptimizers()
        self._checkpoints = LocalCheckpoints(self)
        self._folders: AloneCheckpoints | None = None
        self._has_run = False

    # Modules.

    def _host_across_replicas(self, adoptions: Sequence[Adoption]) -> None:
        self._checkpoints.require_told_apart([adoption.name for adoption in adoptions])
        for adoption in adoptions:
            self._checkpoints.restore_parameter(adoption)
        super()._host_across_replicas(adoptions)
        self._checkpoints.restore_slots_of(adoptions)

    def host(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            parameter = adoption.parameter
            if parameter.device != self.devices[0]:
                parameter.data = parameter.detach().to(self.devices[0])
            self.host_one(adoption)

    @abstractmethod
    def host_one(self, adoption: Adoption) -> None:
        """Make a variable of a parameter, which is on the first replica's device."""

    def host_buffers(self, roots: Sequence[nn.Module]) -> None:
        for module in (part for root in roots for part in root.modules()):
            for key, buffer in module._buffers.items():
                if buffer is not None and buffer.device != self.devices[0]:
                    module._buffers[key] = buffer.to(self.devices[0])
        self._checkpoints.restore_buffers()
        super().host_buffers(roots)

    def variables(self) -> list[Variable]:
        """Return the variables that still live, those of parameters first."""
        hosted = [hosted.variable for hosted in self.parameters]
        owners = self._extended._names.owners()
        return [*hosted, *(one for one in owners if isinstance(one, Variable))]

    # Optimizers.

    def apply_gradients(self, step: OptimizerStep) -> None:
        if self._folders is not None:
            self._folders.require_counted(step.optimizer)
        self._apply(step)
        self.ran()

    def _apply(self, step: OptimizerStep) -> None:
        reduced = self.reduced_gradients(step)
        if step.limiter.limits:
            names = [update.variable.name for update in step.updates()]
            # Copies are equal, so the first one's gradient stands for all.
            first = [select_replica(0, gradient) for gradient in reduced]
            limited = step.limiter.limited(dict(zip(names, first, strict=True)))
            if limited is None:
                return
            reduced = list(limited.values())
        self.take_step(step, reduced)

    def take_step(self, step: OptimizerStep, reduced: Sequence[Any]) -> None:
        """Step each of `step.updates()` by its gradient, which is within limits."""
        self.optimizers.step(step, reduced)

    def reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        """Return one gradient for each of `step.updates()`."""
        return [step.reduced(update) for update in step.updates()]

    def stateful_optimizers(self) -> Iterable[str]:
        """Return the names of the optimizers that have state."""
        return self.optimizers.names()

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        return [self.optimizers.slots(optimizer, one) for one in variables]

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        for variable, state in slots.items():
            self.optimizers.replace_slots(optimizer, variable, state)

    def before_replicas(self) -> None:
        super().before_replicas()
        self._checkpoints.before_use()

    # Checkpoints.

    @property
    def folders(self) -> AloneCheckpoints:
        """The program's folders of checkpoints; most write none, and load nothing for it."""
        if self._folders is None:
            from stratagem._checkpoints.alone import AloneCheckpoints

            self._folders = AloneCheckpoints(self._has_run)
        return self._folders

    def ran(self) -> None:
        self._has_run = True
        if self._folders is not None:
            self._folders.ran()

    def held(self) -> Held:
        """Return all that is to be in a checkpoint of a folder, as of now."""
        from stratagem._checkpoints.alone import Held

        return Held(self.state_dict())

    def load(self, checkpoint: Checkpoint, strict: bool) -> RestoreStatus:
        """Replace values by those of a checkpoint, also of what is made later."""
        from stratagem._checkpoints.files import state_of

        return self.load_state_dict(state_of(checkpoint), strict)

    def created(self, variable: Variable) -> None:
        self._checkpoints.restore_variable(variable)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._checkpoints.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> RestoreStatus:
        return self._checkpoints.load(state, strict, origins_in(state))

    def origin(self, name: str) -> Origin | None:
        """Return what tells a variable from its namesakes; None if it is unknown."""
        return self._extended._names.origin(name)


class LocalCheckpoints:
    """Saves and restores what a strategy holds.

    A checkpoint has the variables that still live, those of modules included, the buffers that
    `state_dict()` of the modules would have, and the optimizers' state. Values are reduced over all
    replicas, so that they fit under any strategy. What is made after a checkpoint was restored
    starts with its value there.
    """

    def __init__(self, hosting: LocalHosting) -> None:
        self._hosting = hosting
        self._names = hosting.extended._names
        self._deferred = DeferredState()
        self._origins: Origins = {}
        self._strict = True
        self._has_new = False

    # Saving.

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return snapshots of everything, by name."""
        self._hosting.extended._before_replicas()
        self._names.warn_of_order()
        state = {entry.name: entry.read() for entry in self._entries()}
        variables = self._hosting.variables()
        for optimizer in self._hosting.stateful_optimizers():
            found = self._hosting.slots(optimizer, variables)
            for variable, slots in zip(variables, found, strict=True):
                for key, value in slots.items():
                    state[str(SlotName(variable.name, optimizer, key))] = value
        return with_origins(state, self._own())

    def _entries(self) -> list[CheckpointEntry]:
        # What the program has dropped does not count, whether or not it was collected by itself.
        gc.collect()
        return [
            *map(CheckpointEntry.of_variable, self._hosting.variables()),
            *(CheckpointEntry.of_tensor(*named) for named in self._hosting.adopter.buffers),
        ]

    # Restoring.

    def load(
        self, state: Mapping[str, torch.Tensor], strict: bool, origins: Origins
    ) -> RestoreStatus:
        """Replace values by those of a checkpoint, also of what is made later.

        Args:
            state: The values.
            strict: Whether there has to be one for each of those that are to be saved.
            origins: What tells namesakes of the checkpoint apart, tables included.

        Raises:
            NotFoundError: The checkpoint lacks something, and `strict` is set.
            InvalidArgumentError: A shape or a dtype differs.
        """
        self._hosting.extended._before_replicas()
        entries = self._entries()
        missing = [entry.name for entry in entries if entry.name not in state]
        if strict and missing:
            raise _lacks(missing, state)
        present = [entry for entry in entries if entry.name in state]
        for entry in present:
            entry.require_fit(state[entry.name])
        own = self._own()
        self._refuse(exchanged(own, origins) or lacking(own, origins))
        self._names.warn_of(doubtful(own, origins))
        self._origins, self._strict, self._has_new = origins, strict, False
        self._deferred.replace(state)
        for entry in present:
            self._deferred.restore(entry)
        for variable in self._hosting.variables():
            if variable.name in state:
                # An optimizer without saved state had none yet.
                stateful = self._hosting.stateful_optimizers()
                self._restore_slots(variable, stateful)
        # The parameters of modules follow at once, not when replicas run next.
        self._hosting.extended._before_replicas()
        return RestoreStatus(self._deferred, missing)

    def _restore_slots(self, variable: Variable, optimizers: Iterable[str] = ()) -> None:
        slots = self._deferred.take_slots(variable.name)
        for optimizer in {*slots, *optimizers}:
            self._hosting.set_slots(optimizer, {variable: slots.get(optimizer, {})})

    # What tells variables of one name apart.

    def _own(self) -> dict[str, Origin]:
        hosted = [one.name for one in self._hosting.parameters]
        return self._of([*hosted, *(variable.name for variable in self._hosting.variables())])

    def _of(self, names: Iterable[str]) -> dict[str, Origin]:
        found = {name: self._hosting.origin(name) for name in names}
        return {name: origin for name, origin in found.items() if origin is not None}

    def require_told_apart(self, names: Sequence[str]) -> None:
        """Check what is made after a checkpoint was restored, as far as is known by then.

        Raises:
            InvalidArgumentError: A value is of a namesake, or may be.
        """
        if not self._origins:
            return
        self._has_new = True
        new = self._of(names)
        batches = batches_of(new, self._origins)
        self._refuse(
            exchanged(new, self._origins)
            or lacking({**self._own(), **new}, self._origins, None, batches)
            or (surplus({**self._own(), **new}, self._origins) if self._strict else None)
        )
        self._names.warn_of(doubtful(new, self._origins))

    def before_use(self) -> None:
        """Check that what was made since a checkpoint was restored are all of their names.

        Raises:
            InvalidArgumentError: There are more in the checkpoint.
        """
        if self._has_new:
            self._refuse(lacking(self._own(), self._origins))
            self._has_new = False

    def _refuse(self, confusion: Confusion | None) -> None:
        if confusion:
            message = confusion.sentence("this program", "the checkpoint")
            raise InvalidArgumentError(message, variable=confusion.name)

    # What is made later.

    def restore_variable(self, variable: Variable) -> None:
        """Give a variable that was just created its value in the checkpoint."""
        self.require_told_apart([variable.name])
        with cross_replica(self._hosting.extended._container_strategy()):
            self._deferred.restore(CheckpointEntry.of_variable(variable))
        self._restore_slots(variable)

    def restore_parameter(self, adoption: Adoption) -> None:
        """Give a parameter that is to be hosted its value in the checkpoint."""
        self._deferred.restore(CheckpointEntry.of_tensor(adoption.name, adoption.parameter))

    def restore_slots_of(self, adoptions: Sequence[Adoption]) -> None:
        """Give optimizers their state for parameters that were just hosted."""
        fresh = {adoption.name for adoption in adoptions}
        for hosted in self._hosting.parameters:
            if hosted.name in fresh:
                self._restore_slots(hosted.variable)

    def restore_buffers(self) -> None:
        """Give buffers of modules their values in the checkpoint."""
        for named in self._hosting.adopter.buffers:
            self._deferred.restore(CheckpointEntry.of_tensor(*named))


def _lacks(missing: Sequence[str], state: Mapping[str, torch.Tensor]) -> NotFoundError:
    return NotFoundError(
        f"the checkpoint has no {', '.join(map(repr, missing))}; it has "
        f"{', '.join(map(repr, sorted(state))) or 'nothing'}. Restore into the program that "
        "was saved, or pass strict=False to leave what it lacks as it is"
    )


Unite = Callable[[Sequence[LocalVariable]], Variable]
"""Returns the variable that consists of copies, one on each replica's device."""


def _make_copies_of_first(hosted: HostedParameter) -> None:
    hosted.accept_everywhere()
    for copy, leaf in zip(hosted.variable.values, hosted.leaves, strict=True):
        assert isinstance(copy, LocalVariable)
        copy.follow(leaf)


class CopiesHosting(LocalHosting):
    """Keeps a leaf of each parameter on each replica's device.

    Leaves have storage of their own, and optimizers work on them in place. When the user writes a
    parameter, the first replica's leaf counts.
    """

    def __init__(
        self,
        extended: StrategyExtended,
        names: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        unite: Unite,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, [*map(torch_device, names)], elsewhere)
        self._device_names = names
        self._cross_device_ops = cross_device_ops
        self._unite = unite

    def host_one(self, adoption: Adoption) -> None:
        parameter = adoption.parameter
        leaves = [
            Parameter(parameter.detach().to(device, copy=True), parameter.requires_grad)
            for device in self.devices[1:]
        ]
        traits = VariableTraits.with_defaults(adoption.name, parameter.requires_grad)
        copies = zip((parameter, *leaves), self._device_names, strict=True)
        variable = self._unite(
            [LocalVariable.over(leaf, traits, device) for leaf, device in copies]
        )
        self.parameters.add(parameter, variable, adoption.owners, leaves)

    def before_replicas(self) -> None:
        super().before_replicas()
        for hosted in self.parameters.written_locally():
            if hosted.was_written(since_replica=1):
                self.accept_writes(hosted)
            _make_copies_of_first(hosted)

    def apply_gradients(self, step: OptimizerStep) -> None:
        for hosted in self.parameters:
            if hosted.was_written():
                self.accept_writes(hosted)
        super().apply_gradients(self.joined(step))
        for hosted in self.parameters:
            hosted.accept()

    def accept_writes(self, hosted: HostedParameter) -> None:
        """Take what replicas have written into a parameter, if it is the same in all of them.

        Raises:
            ContextError: It is not; all have the first one's then.
        """
        first, *others = hosted.leaves
        for leaf in others:
            there = leaf.to(first.device)
            # What has diverged is alike as well, and is the user's to find.
            if torch.equal(first, there) or torch.allclose(
                first, there, rtol=0, atol=0, equal_nan=True
            ):
                continue
            _make_copies_of_first(hosted)
            raise ContextError(
                f"parameter {hosted.name!r} was written in replicas, and not alike, as the "
                "`max_norm` of an embedding does, which scales the rows that a replica looks up; "
                "write parameters outside of run(), or the same in each replica. All replicas have "
                "the first one's now"
            )

    def joined(self, step: OptimizerStep) -> OptimizerStep:
        """Return a step as it is to be taken."""
        return step

    def reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        pairs = [
            (PerReplica(update.gradients), update.variable)
            for update in step.updates()
            if self._has_all_dense(update)
        ]
        reduced = iter(self._cross_device_ops.batch_reduce(step.reduce_op, pairs))
        return [
            next(reduced) if self._has_all_dense(update) else step.reduced(update)
            for update in step.updates()
        ]

    def _has_all_dense(self, update: VariableGradients) -> bool:
        dense = not any(gradient.is_sparse for gradient in update.gradients)
        return dense and len(update.gradients) == len(self.devices) > 1

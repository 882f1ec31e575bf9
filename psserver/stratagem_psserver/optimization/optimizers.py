"""Running `torch.optim` on hosted variables, with its state in slot variables.

A step makes an optimizer of the real class, passes it tensors of the store as parameters and state,
calls its `step`, and stores the state that it made. Only the store keeps state, so restoring a slot
variable restores the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StratagemError,
)
from stratagem_proto.programs.optimizers import rule_named
from stratagem_proto.programs.traced_rules import require_whole
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.wire.tensors import is_out_of_memory
from stratagem_psserver.limits import VariableMemoryLimit, require_memory
from stratagem_psserver.optimization.bindings import (
    BoundParameter,
    OptimizerStates,
    ParameterBinding,
    TableRowBinding,
    TensorRowBinding,
    WholeBinding,
)
from stratagem_psserver.optimization.gradients import Gradient, check_gradient
from stratagem_psserver.optimization.torch_rules import (
    NUMBERS,
    StepNeeds,
    is_safe_number,
    take_step,
)
from stratagem_psserver.optimization.traced_rules import (
    Settings,
    TracedSettings,
    settings_of_groups,
)
from stratagem_psserver.variables.store import Variable, VariableStore

# The most temporary tensors of a parameter's size that an optimizer makes during a step.
_TEMPORARIES = 3
# Smaller steps find memory that was freed before.
LARGE = 1 << 20


class Undo:
    """A context for one step, which undoes the step if it fails and raises a typed error.

    A step that may fail because of its numbers has its variables copied first, by `keep`. Any other
    step can only fail for lack of memory, so `require_memory` looks for memory before it begins.

    Args:
        class_name: The optimizer's class, for messages.

    Attributes:
        begun: Whether the step may have changed variables; the caller sets it.
    """

    __slots__ = ("_class_name", "_kept", "begun")

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self.begun = False

    def keep(self, written: Iterable[torch.Tensor]) -> None:
        """Copy the tensors that the step writes, to restore them if it fails."""
        self._kept = [(tensor, tensor.clone()) for tensor in written]

    def drop_copies(self) -> None:
        """Drop the copies, because the step now writes tensors that were not copied."""
        self._kept, self.begun = None, True

    @staticmethod
    def require_memory(written: Sequence[torch.Tensor], missing: int = 0) -> None:
        """Check that there is memory for the temporary tensors and the new state of the step.

        Args:
            written: Tensors that the step writes, among them the parameters.
            missing: Bytes of the state that the step makes.
        """
        largest = max((tensor.nbytes for tensor in written), default=0)
        if largest + missing > LARGE:
            require_memory([largest] * _TEMPORARIES + [missing])

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        for tensor, before in self._kept or ():
            tensor.copy_(before)
        if isinstance(error, Exception):
            is_named = isinstance(error, StratagemError)
            # The server's lack of memory is temporary for clients, which would repeat a step that
            # has changed variables.
            if not is_named or (self._is_changed and is_out_of_memory(error)):
                raise self._named(error) from error

    @property
    def _is_changed(self) -> bool:
        return self.begun and self._kept is None

    def _named(self, error: Exception) -> StratagemError:
        name = f"a step of {self._class_name}"
        if self._is_changed:
            return DataLossError(
                f"{name} failed half-way ({_line(error)}): its variables may be "
                "changed in part; restore the last checkpoint"
            )
        if is_out_of_memory(error):
            return ResourceExhaustedError(
                f"the machine of the server has no memory for {name}, which changed "
                "nothing; use more servers, or smaller variables"
            )
        return InvalidArgumentError(
            f"{self._class_name} cannot take this step, which changed "
            f"nothing: {_line(error)}; see its hyperparameters and its state"
        )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


States: TypeAlias = Sequence[Mapping[str, Any]]
"""The state of each of an optimizer's parameters after a step."""


@dataclass
class Group:
    """A param group, and the bindings of its variables that have a gradient."""

    settings: Settings
    bindings: list[ParameterBinding] = field(default_factory=list)

    def step(self, all_bound: Sequence[BoundParameter]) -> States:
        """Step the bound tensors, and return the state of each; rows are written back later."""
        if not all_bound:
            return ()
        fresh = [bound.tensor for bound in all_bound if not bound.state]
        parameters = [bound.tensor for bound in all_bound]
        optimizer = self.settings.prototype.optimizer(parameters, fresh)
        try:
            for bound in all_bound:
                bound.tensor.grad = bound.gradient
                if bound.state:
                    optimizer.state[bound.tensor] = bound.state
            take_step(optimizer, any(bound.gradient.is_sparse for bound in all_bound))
        finally:
            for bound in all_bound:
                bound.tensor.grad = None
        return [optimizer.state.get(bound.tensor, {}) for bound in all_bound]

    def is_safe(self, all_bound: Sequence[BoundParameter]) -> bool:
        """Return whether hyperparameters and state are safe, so that the step cannot fail."""
        return all(
            self.settings.is_safe(bound.tensor.dtype) and _has_safe_numbers(bound)
            for bound in all_bound
        )

    def written(self, all_bound: Sequence[BoundParameter]) -> Iterator[torch.Tensor]:
        """Yield the tensors of variables that the step writes in place."""
        for binding, bound in zip(self.bindings, all_bound, strict=True):
            if not binding.is_by_rows:
                yield bound.tensor
                yield from filter(torch.is_tensor, bound.state.values())

    @property
    def missing(self) -> int:
        """Bytes of the state that the step makes."""
        return sum(
            binding.missing for binding in self.bindings if isinstance(binding, WholeBinding)
        )

    def close(self, states: States, undo: Undo) -> None:
        """Write rows back, and take over the state that the optimizer made."""
        for binding, state in zip(self.bindings, states, strict=True):
            binding.close(state)
            if binding.is_by_rows:
                undo.drop_copies()


class ReadyStep(Protocol):
    """A step that is ready to run. Call `run` once, then `Optimizers.commit`.

    Attributes:
        program: The optimizer program.
        variables: The variables to step, in the order of the gradients.
        nbytes: The size of the gradients.
    """

    program: OptimizerProgram
    variables: list[Variable]
    nbytes: int

    def run(self) -> None:
        """Change the values of the variables and their slots, on any thread."""

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""


@dataclass
class CheckedStep:
    """A checked step. Call `run` once, on any thread, then `Optimizers.commit`."""

    program: OptimizerProgram
    groups: list[Group]
    variables: list[Variable]
    nbytes: int
    memory_limit: VariableMemoryLimit

    def run(self) -> None:
        """Change the values of the variables and their slots.

        Raises:
            InvalidArgumentError: torch failed; nothing is changed.
            ResourceExhaustedError: There is not enough memory; nothing is changed.
            DataLossError: torch failed after variables were changed that cannot be restored.
        """
        with Undo(self.program.class_name) as undo:
            opened = [
                [binding.open(self.memory_limit) for binding in group.bindings]
                for group in self.groups
            ]
            written = self._prepare(undo, opened)
            undo.begun = bool(written)
            states = [group.step(bound) for group, bound in zip(self.groups, opened, strict=True)]
            for group, made in zip(self.groups, states, strict=True):
                group.close(made, undo)

    def _prepare(
        self, undo: Undo, opened: Sequence[Sequence[BoundParameter]]
    ) -> Sequence[torch.Tensor]:
        """Look for memory or make copies, so that a failure loses nothing.

        Returns:
            The tensors that are written in place.
        """
        pairs = list(zip(self.groups, opened, strict=True))
        written = [each for group, bound in pairs for each in group.written(bound)]
        if all(group.is_safe(bound) for group, bound in pairs):
            bound = [each.tensor for group_bound in opened for each in group_bound]
            undo.require_memory(bound, sum(group.missing for group in self.groups))
        else:
            undo.keep(written)
        return written

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""
        for group in self.groups:
            for binding in group.bindings:
                binding.commit(store)


def _has_safe_numbers(bound: BoundParameter) -> bool:
    return all(
        is_safe_number(key, float(bound.state[key])) for key in NUMBERS.keys() & bound.state.keys()
    )


# No sensible program has as many; without a limit they would fill the memory.
MAX_OPTIMIZERS = 10_000


class Optimizers:
    """The optimizers that have stepped variables of the store."""

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        self._states = OptimizerStates(store)
        # By name: the class, and the variables that it has stepped.
        self._known: dict[str, tuple[str, set[str]]] = {}

    def prepare(self, program: OptimizerProgram, gradients: Sequence[Gradient]) -> CheckedStep:
        """Check a step completely, without changing a variable.

        Raises:
            InvalidArgumentError: The class, a hyperparameter, a group or a gradient is not
                acceptable.
            FailedPreconditionError: The optimizer's state is incomplete or does not fit.
            AlreadyExistsError: The name belongs to an optimizer of another class, or that of a
                state tensor to another variable.
        """
        self.check_class(program)
        groups = [Group(settings) for settings in settings_of_groups(program)]
        variables = [self._store.get(gradient.variable) for gradient in gradients]
        for variable, gradient in zip(variables, gradients, strict=True):
            self._join(program.name, groups, variable, gradient)
        return CheckedStep(
            program,
            groups,
            variables,
            sum(gradient.value.nbytes for gradient in gradients),
            self._store.memory_limit,
        )

    def check_class(self, program: OptimizerProgram) -> None:
        """Check that an optimizer of this name can have this class.

        Raises:
            InvalidArgumentError: There is no such class, or the name is not valid.
            AlreadyExistsError: The name belongs to an optimizer of another class.
            FailedPreconditionError: There are too many optimizers.
        """
        known = self._known[program.name][0] if program.name in self._known else None
        if known == program.class_name:
            return
        check_name(program.name, "optimizer")
        if not program.rules:
            rule_named(program.class_name)
        if known is not None:
            raise AlreadyExistsError(
                f"optimizer {program.name!r} is a {known} on this server and cannot "
                f"become a {program.class_name}; give the new one another name"
            )
        if len(self._known) >= MAX_OPTIMIZERS:
            raise FailedPreconditionError(
                f"{MAX_OPTIMIZERS} optimizers have stepped variables of this server, "
                "which is the most; give one optimizer the same name in each step"
            )

    def commit(self, step: ReadyStep) -> list[int]:
        """Record what a step did, and return the new versions of its variables in their order."""
        if isinstance(step, CheckedStep):
            # A repeated step has the same variables as the checked one before it.
            unknown = step.program.class_name, set[str]()
            stepped = self._known.setdefault(step.program.name, unknown)[1]
            stepped.update([variable.name for variable in step.variables])
        for variable in step.variables:
            variable.version += 1
        step.commit(self._store)
        return [variable.version for variable in step.variables]

    def forget(self, names: Sequence[str]) -> None:
        """Note that variables were deleted, and their slots with them."""
        for optimizer, (_, stepped) in list(self._known.items()):
            stepped.difference_update(names)
            if not stepped:
                del self._known[optimizer]

    def classes(self) -> dict[str, tuple[str, list[str]]]:
        """Return the class of each optimizer, and the variables that it has stepped."""
        return {
            name: (class_name, sorted(stepped))
            for name, (class_name, stepped) in self._known.items()
        }

    def restore(self, classes: Mapping[str, tuple[str, Sequence[str]]]) -> None:
        """Add the optimizers of a checkpoint."""
        for name, (class_name, stepped) in classes.items():
            self._known[name] = (class_name, set(stepped))

    def _join(self, name: str, groups: list[Group], variable: Variable, gradient: Gradient) -> None:
        check_gradient(variable, gradient)
        if gradient.group >= len(groups):
            raise InvalidArgumentError(
                f"the gradient of {variable.name!r} is of param group "
                f"{gradient.group}; the program has {len(groups)}",
                variable=variable.name,
            )
        group = groups[gradient.group]
        group.bindings.append(self._binding(name, group.settings, variable, gradient))

    def _binding(
        self, name: str, settings: Settings, variable: Variable, gradient: Gradient
    ) -> ParameterBinding:
        sparse = gradient.rows is not None
        if isinstance(settings, TracedSettings) and variable.spec.HasField("partition"):
            require_whole(settings.rule.message, variable.name, name)
        needs = settings.needs(variable.value.dtype, sparse)
        _require_whole_rows(variable, name, needs)
        layout, names, slots = self._states.find(name, variable, needs.layout)
        if not sparse:
            return WholeBinding(variable, gradient.value, layout, names, slots)
        if variable.arena is None:
            return TensorRowBinding(variable, gradient, needs, names, slots)
        binding = TableRowBinding(variable, gradient, needs, names, slots)
        binding.check_fit()
        return binding


def _require_whole_rows(variable: Variable, name: str, needs: StepNeeds) -> None:
    partition = variable.spec.partition
    is_of_columns = partition.full_shape[1:] != variable.spec.tensor.shape[1:]
    if is_of_columns and partition.full_shape and needs.has_rows:
        raise InvalidArgumentError(
            f"{variable.name!r} is a part of columns, and optimizer {name!r} keeps one number for "
            "each row, whose parts would need the same; partition along the first axis",
            variable=variable.name,
        )

"""Running `torch.optim` on hosted variables, with its state in slot variables.

A step makes an optimizer of the real class, passes it tensors of the store as parameters and state,
calls its `step`, and stores the state that it made. Only the store keeps state, so restoring a slot
variable restores the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratagem_proto.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.optimizers import rule_named
from stratagem_proto.programs.traced_rules import require_whole
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.optimization.bindings import ParameterBinding, WholeBinding
from stratagem_psserver.optimization.dry_run import StepNeeds
from stratagem_psserver.optimization.gradients import Gradient, check_gradient
from stratagem_psserver.optimization.group_settings import Settings, settings_of_groups
from stratagem_psserver.optimization.optimizer_states import OptimizerStates
from stratagem_psserver.optimization.row_bindings import TableRowBinding, TensorRowBinding
from stratagem_psserver.optimization.steps import CheckedStep, Group, ReadyStep
from stratagem_psserver.optimization.traced_rules import TracedSettings
from stratagem_psserver.variables.store import Variable, VariableStore

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
        layout, names, slots = self._states.of(name, variable, needs.layout)
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

"""Running `torch.optim` over hosted variables, with its state in slot variables.

A step makes the real optimizer, lends it the very tensors of the store as parameters
and state, lets it step, and takes back what state it made. The store is the only
owner of the state: restoring a slot variable restores the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from stratagem_proto.optimizers import OptimizerRule, Value, decode_group, rule_named
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.gradients import Gradient, check_gradient
from stratagem_psserver.rehearsal import (
    StateLayout,
    hyperparameters_of,
    make_optimizer,
    rehearse,
    take_step,
)
from stratagem_psserver.store import Variable, VariableStore

# More than any sane program has; without an end they would fill the memory.
MAX_OPTIMIZERS = 10_000


@dataclass
class _Parameter:
    """A variable lent to an optimizer for one step."""

    variable: Variable
    gradient: torch.Tensor
    layout: StateLayout
    state: dict[str, torch.Tensor]

    def keep(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes back what an optimizer made, in the dtypes of the layout."""
        self.state = {
            key: tensor.to(self.layout[key].dtype) for key, tensor in state.items()
        }


@dataclass
class _Group:
    """A param group with those of its parameters that have a gradient."""

    values: Mapping[str, Value]
    parameters: list[_Parameter] = field(default_factory=list)
    _layouts: dict[tuple[torch.dtype, bool], StateLayout] = field(default_factory=dict)

    def layout(
        self, rule: OptimizerRule, dtype: torch.dtype, sparse: bool
    ) -> StateLayout:
        key = (dtype, sparse)
        if key not in self._layouts:
            self._layouts[key] = rehearse(rule, self.values, dtype, sparse)
        return self._layouts[key]

    def step(self, rule: OptimizerRule) -> None:
        lent = {each.variable.value: each for each in self.parameters}
        fresh = [tensor for tensor, each in lent.items() if not each.state]
        optimizer = make_optimizer(rule, self.values, fresh)
        optimizer.param_groups[0]["params"] = list(lent)
        for tensor, each in lent.items():
            tensor.grad = each.gradient
            if each.state:
                optimizer.state[tensor] = each.state
        take_step(optimizer)
        for tensor, each in lent.items():
            tensor.grad = None
            each.keep(optimizer.state.get(tensor, {}))


@dataclass
class OptimizerStep:
    """A checked step. Call `run` once, on any thread, then `Optimizers.commit`."""

    program: OptimizerProgram
    rule: OptimizerRule
    groups: list[_Group]
    variables: list[Variable]
    nbytes: int

    def run(self) -> None:
        """Changes the values of the variables and their slots."""
        for group in self.groups:
            if group.parameters:
                group.step(self.rule)


def slot_name(variable: str, optimizer: str, key: str) -> str:
    """Name of the slot variable that keeps a state tensor of an optimizer."""
    return f"{variable}/{optimizer}/{key}"


class Optimizers:
    """The optimizers that have stepped variables of a store."""

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        # By name: the class, and the variables that it has stepped.
        self._known: dict[str, tuple[str, set[str]]] = {}

    def prepare(
        self, program: OptimizerProgram, gradients: Sequence[Gradient]
    ) -> OptimizerStep:
        """Checks a step completely, without touching a variable.

        Raises:
            InvalidArgumentError: The class, a hyperparameter, a group or a gradient
                is not acceptable.
            FailedPreconditionError: The optimizer's state is incomplete or does not
                fit.
            AlreadyExistsError: The name belongs to an optimizer of another class, or
                that of a state tensor to another variable.
        """
        rule = self._rule(program)
        groups = [
            _Group(_complete(rule, decode_group(rule, group)))
            for group in program.groups
        ]
        for gradient in gradients:
            self._join(program.name, rule, groups, gradient)
        return OptimizerStep(
            program,
            rule,
            groups,
            [self._store.get(gradient.variable) for gradient in gradients],
            sum(gradient.value.nbytes for gradient in gradients),
        )

    def commit(self, step: OptimizerStep) -> list[int]:
        """Records what a step did; returns its variables' versions, in its order."""
        unknown = step.program.class_name, set[str]()
        stepped = self._known.setdefault(step.program.name, unknown)[1]
        stepped.update(variable.name for variable in step.variables)
        for variable in step.variables:
            variable.version += 1
        for group in step.groups:
            for each in group.parameters:
                owner = each.variable.name
                for key, tensor in each.state.items():
                    name = slot_name(owner, step.program.name, key)
                    self._store.put_slot(name, owner, tensor)
        return [variable.version for variable in step.variables]

    def forget(self, names: Sequence[str]) -> None:
        """Takes note that variables were deleted, and their slots with them."""
        for optimizer, (_, stepped) in list(self._known.items()):
            stepped.difference_update(names)
            if not stepped:
                del self._known[optimizer]

    def _rule(self, program: OptimizerProgram) -> OptimizerRule:
        check_name(program.name, "optimizer")
        rule = rule_named(program.class_name)
        unknown = program.class_name, set[str]()
        known = self._known.get(program.name, unknown)[0]
        if known != program.class_name:
            raise AlreadyExistsError(
                f"optimizer {program.name!r} is a {known} on this server and cannot "
                f"become a {program.class_name}; give the new one another name"
            )
        if program.name not in self._known and len(self._known) >= MAX_OPTIMIZERS:
            raise FailedPreconditionError(
                f"{MAX_OPTIMIZERS} optimizers have stepped variables of this server, "
                "which is the most; give one optimizer the same name in each step"
            )
        return rule

    def _join(
        self, name: str, rule: OptimizerRule, groups: list[_Group], gradient: Gradient
    ) -> None:
        variable = self._store.get(gradient.variable)
        check_gradient(variable, gradient)
        if variable.spec.slot_of:
            raise InvalidArgumentError(
                f"{variable.name!r} is a slot of {variable.spec.slot_of!r}; optimizers "
                "step the variables themselves",
                variable=variable.name,
            )
        if gradient.group >= len(groups):
            raise InvalidArgumentError(
                f"the gradient of {variable.name!r} is of param group "
                f"{gradient.group}; the program has {len(groups)}",
                variable=variable.name,
            )
        group = groups[gradient.group]
        layout = group.layout(rule, variable.value.dtype, gradient.rows is not None)
        state = self._state(name, variable, layout)
        grad = gradient.as_grad(variable)
        group.parameters.append(_Parameter(variable, grad, layout, state))

    def _state(
        self, optimizer: str, variable: Variable, layout: StateLayout
    ) -> dict[str, torch.Tensor]:
        """The tensors of the slot variables; empty if there are none yet."""
        found: dict[str, torch.Tensor] = {}
        for key, expected in layout.items():
            name = slot_name(variable.name, optimizer, key)
            check_name(name)
            slot = self._store.find(name)
            if slot is None:
                continue
            _check_slot(slot, variable, expected.dtype, expected.shape(variable.value))
            found[key] = slot.value
        if found and (missing := layout.keys() - found.keys()):
            raise FailedPreconditionError(
                f"optimizer {optimizer!r} has the state {sorted(found)} for "
                f"{variable.name!r} but no {sorted(missing)}; create all of these slot "
                "variables or delete all",
                variable=variable.name,
            )
        return found


def _check_slot(
    slot: Variable, variable: Variable, dtype: torch.dtype, shape: torch.Size
) -> None:
    if slot.spec.slot_of != variable.name:
        raise AlreadyExistsError(
            f"variable {slot.name!r} is no slot of {variable.name!r} but has the name "
            "of the optimizer's state; rename the variable or the optimizer",
            variable=slot.name,
        )
    if (slot.value.dtype, slot.value.shape) != (dtype, shape):
        raise FailedPreconditionError(
            f"slot variable {slot.name!r} is {slot.value.dtype} of shape "
            f"{list(slot.value.shape)}; the optimizer needs {dtype} of shape "
            f"{list(shape)}; delete it or create it so",
            variable=slot.name,
        )


def _complete(rule: OptimizerRule, values: Mapping[str, Value]) -> Mapping[str, Value]:
    if missing := hyperparameters_of(rule) - values.keys():
        raise InvalidArgumentError(
            f"a param group of {rule.cls.__name__} comes without {sorted(missing)}; "
            "send all hyperparameters with each step"
        )
    return values

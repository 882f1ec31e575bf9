"""Running `torch.optim` over hosted variables, with its state in slot variables.

A step makes the real optimizer, lends it the very tensors of the store as parameters
and state, lets it step, and takes back what state it made. The store is the only
owner of the state: restoring a slot variable restores the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from stratagem_proto.optimizers import OptimizerRule, Value, rule_named
from stratagem_proto.protocol import check_name
from stratagem_proto.update_programs import decode_group
from stratagem_proto.v1.update_program_pb2 import (
    HyperparameterGroup,
    OptimizerProgram,
)
from stratagem_psserver.optimization.dry_run import (
    StepNeeds,
    dry_run,
    hyperparameters_of,
)
from stratagem_psserver.optimization.gradients import Gradient, check_gradient
from stratagem_psserver.optimization.loans import Lent, Loan, WholeLoan
from stratagem_psserver.optimization.optimizer_states import OptimizerStates
from stratagem_psserver.optimization.row_loans import TableRowLoan, TensorRowLoan
from stratagem_psserver.optimization.single_steps import Prototype, take_step
from stratagem_psserver.room import Room
from stratagem_psserver.variables.store import Variable, VariableStore

# More than any sane program has; without an end they would fill the memory.
MAX_OPTIMIZERS = 10_000

# More than hyperparameters take; larger groups are not remembered.
_MOST_GROUP_BYTES = 4 << 10


class _Settings:
    """The hyperparameters of a param group, with what was tried with them."""

    def __init__(self, rule: OptimizerRule, values: Mapping[str, Value]) -> None:
        self.values = values
        self._rule = rule
        self._needs: dict[tuple[torch.dtype, bool], StepNeeds] = {}

    def needs(self, dtype: torch.dtype, sparse: bool) -> StepNeeds:
        key = (dtype, sparse)
        if key not in self._needs:
            self._needs[key] = dry_run(self._rule, self.values, dtype, sparse)
        return self._needs[key]

    @cached_property
    def prototype(self) -> Prototype:
        """Makes what steps with them; ask once it was tried."""
        return Prototype(self._rule, self.values)


@dataclass
class _Group:
    """A param group with those of its variables that have a gradient."""

    settings: _Settings
    loans: list[Loan] = field(default_factory=list)

    def step(self, all_lent: Sequence[Lent]) -> None:
        fresh = [lent.tensor for lent in all_lent if not lent.state]
        parameters = [lent.tensor for lent in all_lent]
        optimizer = self.settings.prototype.optimizer(parameters, fresh)
        for lent in all_lent:
            lent.tensor.grad = lent.gradient
            if lent.state:
                optimizer.state[lent.tensor] = lent.state
        take_step(optimizer, any(lent.gradient.is_sparse for lent in all_lent))
        for lent, loan in zip(all_lent, self.loans, strict=True):
            lent.tensor.grad = None
            loan.close(optimizer.state.get(lent.tensor, {}))


@dataclass
class OptimizerStep:
    """A checked step. Call `run` once, on any thread, then `Optimizers.commit`."""

    program: OptimizerProgram
    groups: list[_Group]
    variables: list[Variable]
    nbytes: int
    room: Room

    def run(self) -> None:
        """Changes the values of the variables and their slots.

        Raises:
            ResourceExhaustedError: There is no memory for it; nothing is changed.
        """
        opened = [
            [loan.open(self.room) for loan in group.loans] for group in self.groups
        ]
        for group, lent in zip(self.groups, opened, strict=True):
            if lent:
                group.step(lent)


class Optimizers:
    """The optimizers that have stepped variables of a store."""

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        self._states = OptimizerStates(store)
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
        self._check_class(program)
        groups = [
            _Group(_settings(program.class_name, group)) for group in program.groups
        ]
        variables = [self._store.get(gradient.variable) for gradient in gradients]
        for variable, gradient in zip(variables, gradients, strict=True):
            self._join(program.name, groups, variable, gradient)
        return OptimizerStep(
            program,
            groups,
            variables,
            sum(gradient.value.nbytes for gradient in gradients),
            self._store.room,
        )

    def commit(self, step: OptimizerStep) -> list[int]:
        """Records what a step did; returns its variables' versions, in its order."""
        unknown = step.program.class_name, set[str]()
        stepped = self._known.setdefault(step.program.name, unknown)[1]
        stepped.update(variable.name for variable in step.variables)
        for variable in step.variables:
            variable.version += 1
        for group in step.groups:
            for loan in group.loans:
                loan.commit(self._store)
        return [variable.version for variable in step.variables]

    def forget(self, names: Sequence[str]) -> None:
        """Takes note that variables were deleted, and their slots with them."""
        for optimizer, (_, stepped) in list(self._known.items()):
            stepped.difference_update(names)
            if not stepped:
                del self._known[optimizer]

    def classes(self) -> dict[str, tuple[str, list[str]]]:
        """The class of each optimizer, and the variables that it has stepped."""
        return {
            name: (class_name, sorted(stepped))
            for name, (class_name, stepped) in self._known.items()
        }

    def restore(self, classes: Mapping[str, tuple[str, Sequence[str]]]) -> None:
        """Knows the optimizers that a checkpoint has state of."""
        for name, (class_name, stepped) in classes.items():
            self._known[name] = (class_name, set(stepped))

    def _check_class(self, program: OptimizerProgram) -> None:
        known = self._known[program.name][0] if program.name in self._known else None
        if known == program.class_name:
            return
        check_name(program.name, "optimizer")
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

    def _join(
        self, name: str, groups: list[_Group], variable: Variable, gradient: Gradient
    ) -> None:
        check_gradient(variable, gradient)
        if gradient.group >= len(groups):
            raise InvalidArgumentError(
                f"the gradient of {variable.name!r} is of param group "
                f"{gradient.group}; the program has {len(groups)}",
                variable=variable.name,
            )
        group = groups[gradient.group]
        group.loans.append(self._lend(name, group.settings, variable, gradient))

    def _lend(
        self, name: str, settings: _Settings, variable: Variable, gradient: Gradient
    ) -> Loan:
        sparse = gradient.rows is not None
        needs = settings.needs(variable.value.dtype, sparse)
        layout, names, slots = self._states.of(name, variable, needs.layout)
        if not sparse:
            return WholeLoan(variable, gradient.value, layout, names, slots)
        if variable.arena is None:
            return TensorRowLoan(variable, gradient, needs, names, slots)
        loan = TableRowLoan(variable, gradient, needs, names, slots)
        loan.check_fit()
        return loan


def _settings(class_name: str, group: HyperparameterGroup) -> _Settings:
    """The settings of a group; steps come with the same ones again and again."""
    encoded = group.SerializeToString()
    is_small = len(encoded) <= _MOST_GROUP_BYTES
    return (_known_settings if is_small else _decoded)(class_name, encoded)


def _decoded(class_name: str, group: bytes) -> _Settings:
    rule = rule_named(class_name)
    values = decode_group(rule, HyperparameterGroup.FromString(group))
    return _Settings(rule, _complete(rule, values))


_known_settings = lru_cache(maxsize=1024)(_decoded)


def _complete(rule: OptimizerRule, values: Mapping[str, Value]) -> Mapping[str, Value]:
    if missing := hyperparameters_of(rule) - values.keys():
        raise InvalidArgumentError(
            f"a param group of {rule.cls.__name__} comes without {sorted(missing)}; "
            "send all hyperparameters with each step"
        )
    return values

"""Finding the state of optimizers, which the store keeps in slot variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratagem_proto.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.protocol import check_name
from stratagem_psserver.optimization.dry_run import StateLayout, StateTensor
from stratagem_psserver.variables.store import Variable, VariableStore


class OptimizerState(NamedTuple):
    """An optimizer's state for a variable.

    Attributes:
        layout: The tensors of the state.
        names: The names of its slots, by the optimizer's keys.
        slots: The slots that exist, by the optimizer's keys: all or none.
    """

    layout: StateLayout
    names: Mapping[str, str]
    slots: Mapping[str, Variable]


class OptimizerStates:
    """Finds the state of optimizers, and caches it until variables are added or removed.

    Making and checking the names of slots takes a notable part of a small step.

    Args:
        store: The store of the variables and their slots.
    """

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        # By the names of the optimizer and the variable.
        self._found: dict[tuple[str, str], OptimizerState] = {}
        store.watch(self._found.clear)

    def of(self, optimizer: str, variable: Variable, layout: StateLayout) -> OptimizerState:
        """Return an optimizer's state for a variable, which may not exist yet.

        Raises:
            InvalidArgumentError: The variable is a slot.
            FailedPreconditionError: The state is incomplete or does not fit.
            AlreadyExistsError: The name of a slot is that of another variable.
        """
        known = self._found.get((optimizer, variable.name))
        if known is not None and known.layout is layout:
            return known
        state = self._find(optimizer, variable, layout)
        # The cache cannot outgrow the slots, whatever names clients send.
        if state.slots:
            self._found[optimizer, variable.name] = state
        return state

    def _find(self, optimizer: str, variable: Variable, layout: StateLayout) -> OptimizerState:
        if variable.spec.slot_of:
            raise InvalidArgumentError(
                f"{variable.name!r} is a slot of {variable.spec.slot_of!r}; optimizers "
                "step the variables themselves",
                variable=variable.name,
            )
        names = {key: str(SlotName(variable.name, optimizer, key)) for key in layout}
        slots = self._slots(optimizer, variable, names, layout)
        return OptimizerState(layout, names, slots)

    def _slots(
        self, optimizer: str, variable: Variable, names: Mapping[str, str], layout: StateLayout
    ) -> dict[str, Variable]:
        """Return the slot variables by the optimizer's keys; none if they do not exist yet."""
        found: dict[str, Variable] = {}
        for key, name in names.items():
            slot = self._store.find(name)
            if slot is None:
                check_name(name)
            else:
                _check_slot(slot, variable, layout[key])
                found[key] = slot
        if found and (missing := layout.keys() - found.keys()):
            raise FailedPreconditionError(
                f"optimizer {optimizer!r} has the state {sorted(found)} for "
                f"{variable.name!r} but no {sorted(missing)}, as if it was trained with other "
                "settings before, such as amsgrad; train with those, or create all of these slot "
                "variables or delete all",
                variable=variable.name,
            )
        return found


def _check_slot(slot: Variable, variable: Variable, expected: StateTensor) -> None:
    if slot.spec.slot_of != variable.name:
        raise AlreadyExistsError(
            f"variable {slot.name!r} is not a slot of {variable.name!r} but has the name "
            "of the optimizer's state; rename the variable or the optimizer",
            variable=slot.name,
        )
    shape = expected.shape(variable.value)
    of_table = variable.arena is not None and not expected.is_scalar
    fits = of_table == (slot.arena is not None)
    if not fits or (slot.value.dtype, slot.value.shape) != (expected.dtype, shape):
        kind = "table" if of_table else "tensor"
        shown = list(expected.shape_for(variable.spec.tensor.shape))
        raise FailedPreconditionError(
            f"slot variable {slot.name!r} is {slot.value.dtype} of shape "
            f"{list(slot.spec.tensor.shape)}; the optimizer needs a {kind}, "
            f"{expected.dtype} of shape {shown}; delete it, or create it like that",
            variable=slot.name,
        )

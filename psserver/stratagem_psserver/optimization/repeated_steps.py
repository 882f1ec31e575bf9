"""Steps that were checked once and are taken again, with other gradients.

What takes longest about a step of many small variables, besides the step, is to find
out what it needs: state, names, and that everything fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.wire.segment import starts
from stratagem_psserver.optimization.bindings import ParameterBinding
from stratagem_psserver.optimization.flat_groups import Joint, JointGroup
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.repeated_groups import (
    Gradients,
    Group,
    Parameter,
    RepeatedGroup,
)
from stratagem_psserver.optimization.row_groups import RowGroup, RowParameter
from stratagem_psserver.optimization.steps import Group as CheckedGroup
from stratagem_psserver.optimization.steps import OptimizerStep
from stratagem_psserver.optimization.undo import LARGE, Undo
from stratagem_psserver.variables.store import VariableStore

_NONE = Gradients(())

Made = TypeVar("Made")


class RepeatedStep:
    """A step whose state is all there.

    It holds until a variable of the store comes, goes or is replaced. Who takes it has
    the locks of its variables from `Optimizers.repeat` to `Optimizers.commit`.

    Args:
        checked: The step as it was taken before.
        groups: Those of its param groups that have variables.

    Attributes:
        program: The optimizer.
        variables: What is stepped, in the order of the gradients.
        nbytes: Size of the gradients with which it was begun last.
        is_joint: Whether it is better taken with all gradients in one.
    """

    def __init__(self, checked: OptimizerStep, groups: Sequence[RepeatedGroup]) -> None:
        # Without hyperparameters, and without the request that it was part of.
        self.program = OptimizerProgram(
            name=checked.program.name, class_name=checked.program.class_name
        )
        self.variables = checked.variables
        self.nbytes = checked.nbytes
        # Rows first: their step fails before anything is changed.
        self._groups = sorted(groups, key=lambda group: not group.is_by_rows)
        self._number_of_groups = len(checked.groups)
        self.is_joint = any(isinstance(group, JointGroup) for group in groups)
        self._gradients = _NONE

    @classmethod
    def of(cls, checked: OptimizerStep, store: VariableStore) -> RepeatedStep | None:
        """The step, if it can be taken again without another check.

        Args:
            checked: It, which was taken and committed.
            store: Where its variables are, whose locks are held. They may be moved.
        """
        making = _Making(checked, store)
        made = [
            group
            for number, each in enumerate(checked.groups)
            for group in making.groups(number, each)
        ]
        groups = [group for group in made if group is not None]
        return cls(checked, groups) if len(groups) == len(made) else None

    def begin(self, settings: Sequence[Settings], gradients: Gradients) -> bool:
        """As `Optimizers.repeat`, with the hyperparameters of each group."""
        same = len(settings) == self._number_of_groups
        taken = same and all(
            group.accepts(settings, gradients) for group in self._groups
        )
        if taken:
            # What is refused must not stay here.
            self._gradients = gradients
            self.nbytes = sum([each.nbytes for each in gradients.each])
        return taken

    def run(self) -> None:
        """Changes the values of the variables and their slots.

        Raises:
            ResourceExhaustedError: There is no memory for it; nothing is changed.
        """
        # They are in the memory of a request that is answered when this is over.
        gradients, self._gradients = self._gradients, _NONE
        with Undo(self.program.class_name) as undo:
            if self.nbytes > LARGE:
                undo.require_memory(gradients.each)
            for group in self._groups:
                undo.begun = not group.is_by_rows
                group.step(gradients)
        for group in self._groups:
            group.put()

    def commit(self, store: VariableStore) -> None:
        """Lets the store know what has come of the state."""
        for group in self._groups:
            group.commit(store)


class _Making:
    """Makes groups of a step that was checked."""

    def __init__(self, checked: OptimizerStep, store: VariableStore) -> None:
        self._store = store
        variables = checked.variables
        self._places = {id(each): place for place, each in enumerate(variables)}
        # Gradients of rows lie elsewhere.
        self._has_rows = any(
            binding.is_by_rows for group in checked.groups for binding in group.bindings
        )
        self._begins, _ = starts([each.value.nbytes for each in variables])

    def groups(
        self, number: int, checked: CheckedGroup
    ) -> Iterator[RepeatedGroup | None]:
        """What a group is stepped as; None among it if it cannot be taken again."""
        by_rows = [binding for binding in checked.bindings if binding.is_by_rows]
        whole = [binding for binding in checked.bindings if not binding.is_by_rows]
        if whole:
            yield self._whole(number, checked.settings, whole)
        if by_rows:
            yield self._by_rows(number, checked.settings, by_rows)

    def _whole(
        self, number: int, settings: Settings, bindings: Sequence[ParameterBinding]
    ) -> RepeatedGroup | None:
        places = self._places_of(bindings)
        joint = self._joint(settings, bindings, places)
        parameters = _all_made(map(Parameter.of, bindings, places))
        if parameters is None:
            return None
        group = Group(number, settings, parameters)
        return JointGroup(number, settings, group, joint) if joint else group

    def _by_rows(
        self, number: int, settings: Settings, bindings: Sequence[ParameterBinding]
    ) -> RepeatedGroup | None:
        parameters = _all_made(
            map(RowParameter.of, bindings, self._places_of(bindings))
        )
        group = RowGroup(number, settings, parameters or ())
        return group if parameters and group.has_rules else None

    def _places_of(self, bindings: Sequence[ParameterBinding]) -> list[int]:
        return [self._places[id(binding.variable)] for binding in bindings]

    def _joint(
        self,
        settings: Settings,
        bindings: Sequence[ParameterBinding],
        places: Sequence[int],
    ) -> Joint | None:
        first = places[0]
        is_run = list(places) == list(range(first, first + len(places)))
        if not is_run or self._has_rows:
            return None
        return Joint.of(self._store, settings, bindings, self._begins[first])


def _all_made(made: Iterable[Made | None]) -> list[Made] | None:
    """All that was made; None if one could not be."""
    each = list(made)
    found = [one for one in each if one is not None]
    return found if len(found) == len(each) else None

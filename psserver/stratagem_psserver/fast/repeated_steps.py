"""Steps that were checked once and are repeated with other gradients.

For many small variables, finding the state and checking that everything fits takes about as long as
the step itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeVar

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.wire.segment import starts
from stratagem_psserver.fast.flat_groups import FlatGroup, FlatParameters
from stratagem_psserver.fast.repeated_groups import (
    Gradients,
    RepeatedGroup,
    WholeGroup,
    WholeParameter,
)
from stratagem_psserver.fast.row_groups import RowGroup, RowParameter
from stratagem_psserver.optimization.bindings import ParameterBinding
from stratagem_psserver.optimization.hyperparameters import GroupSettings, settings_of
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.optimization.steps import CheckedStep, Group
from stratagem_psserver.optimization.undo import LARGE, Undo
from stratagem_psserver.variables.store import VariableStore

_NONE = Gradients(())

Made = TypeVar("Made")


class RepeatedStep:
    """A step whose state exists, so that it can be repeated.

    It is valid until a variable of the store is added, removed or replaced. The caller holds the
    locks of its variables from `begin` to `Optimizers.commit`.

    Args:
        checked: The checked step that it repeats.
        groups: The param groups that have variables.

    Attributes:
        program: The optimizer program.
        variables: The variables to step, in the order of the gradients.
        nbytes: The size of the gradients of the latest `begin`.
        is_flat: Whether a group is stepped faster if all gradients are in one vector.
    """

    def __init__(self, checked: CheckedStep, groups: Sequence[RepeatedGroup]) -> None:
        # A copy without hyperparameters, which does not keep the request in memory.
        self.program = OptimizerProgram(
            name=checked.program.name, class_name=checked.program.class_name
        )
        self.variables = checked.variables
        self.nbytes = checked.nbytes
        # Groups of rows come first, since they can fail without having changed anything.
        self._groups = sorted(groups, key=lambda group: not group.is_by_rows)
        self._number_of_groups = len(checked.groups)
        self.is_flat = any(isinstance(group, FlatGroup) for group in groups)
        self._gradients = _NONE

    @classmethod
    def of(cls, checked: CheckedStep, store: VariableStore) -> RepeatedStep | None:
        """Return a repeated step, or None if the step must be checked each time.

        Args:
            checked: The step, which was run and committed.
            store: The store of its variables. They may be moved in memory, so the caller holds
                their locks.
        """
        making = _Making(checked, store)
        made = [
            group
            for number, each in enumerate(checked.groups)
            for group in making.groups(number, each)
        ]
        groups = [group for group in made if group is not None]
        return cls(checked, groups) if len(groups) == len(made) else None

    def begin(
        self, optimizers: Optimizers, program: OptimizerProgram, gradients: Gradients
    ) -> bool:
        """Set the hyperparameters and gradients of the next step.

        Args:
            optimizers: The optimizers of the store.
            program: The step's program, perhaps with other hyperparameters.
            gradients: Gradients of the step's variables, of the same kinds as before.

        Returns:
            Whether the step can be repeated; if not, the update must be checked in full.

        Raises:
            InvalidArgumentError: A hyperparameter is not acceptable.
            AlreadyExistsError: The optimizer's name belongs to another class.
        """
        optimizers.check_class(program)
        settings = [settings_of(program.class_name, each) for each in program.groups]
        return self._accepts(settings, gradients)

    def _accepts(self, settings: Sequence[GroupSettings], gradients: Gradients) -> bool:
        same = len(settings) == self._number_of_groups
        taken = same and all(group.accepts(settings, gradients) for group in self._groups)
        if taken:
            # Only accepted gradients are kept, since `run` drops them.
            self._gradients = gradients
            self.nbytes = sum([each.nbytes for each in gradients.each])
        return taken

    def run(self) -> None:
        """Change the values of the variables and their slots.

        Raises:
            ResourceExhaustedError: There is not enough memory; nothing is changed.
            DataLossError: There was none when some variables were changed already.
        """
        # Their memory belongs to the request, so no reference may remain after the step.
        gradients, self._gradients = self._gradients, _NONE
        with Undo(self.program.class_name) as undo:
            if self.nbytes > LARGE:
                undo.require_memory(gradients.each)
            for group in self._groups:
                undo.begun = not group.is_by_rows
                group.step(gradients)
            for group in self._groups:
                group.put(undo)

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""
        for group in self._groups:
            group.commit(store)


class _Making:
    """Makes the repeated groups of a checked step."""

    def __init__(self, checked: CheckedStep, store: VariableStore) -> None:
        self._store = store
        variables = checked.variables
        self._places = {id(each): place for place, each in enumerate(variables)}
        # If a gradient is row-sparse, the dense ones have other offsets than those below.
        self._has_rows = any(
            binding.is_by_rows for group in checked.groups for binding in group.bindings
        )
        self._begins, _ = starts([each.value.nbytes for each in variables])

    def groups(self, number: int, checked: Group) -> Iterator[RepeatedGroup | None]:
        """Yield the repeated groups of a param group, or None if it cannot be repeated."""
        by_rows = [binding for binding in checked.bindings if binding.is_by_rows]
        whole = [binding for binding in checked.bindings if not binding.is_by_rows]
        settings = checked.settings
        if not isinstance(settings, GroupSettings):
            # Nothing is known about when a traced step fails, so each is checked.
            yield None
            return
        if whole:
            yield self._whole(number, settings, whole)
        if by_rows:
            yield self._by_rows(number, settings, by_rows)

    def _whole(
        self, number: int, settings: GroupSettings, bindings: Sequence[ParameterBinding]
    ) -> RepeatedGroup | None:
        places = self._places_of(bindings)
        flat = self._flat(settings, bindings, places)
        parameters = _all_made(map(WholeParameter.of, bindings, places))
        if parameters is None:
            return None
        group = WholeGroup(number, settings, parameters)
        return FlatGroup(number, settings, group, flat) if flat else group

    def _by_rows(
        self, number: int, settings: GroupSettings, bindings: Sequence[ParameterBinding]
    ) -> RepeatedGroup | None:
        limit = repeat(self._store.memory_limit)
        parameters = _all_made(map(RowParameter.of, bindings, self._places_of(bindings), limit))
        group = RowGroup(number, settings, parameters or ())
        return group if parameters and group.has_rules else None

    def _places_of(self, bindings: Sequence[ParameterBinding]) -> list[int]:
        return [self._places[id(binding.variable)] for binding in bindings]

    def _flat(
        self, settings: GroupSettings, bindings: Sequence[ParameterBinding], places: Sequence[int]
    ) -> FlatParameters | None:
        first = places[0]
        is_run = list(places) == list(range(first, first + len(places)))
        if not is_run or self._has_rows:
            return None
        begin = self._begins[first]
        return FlatParameters.of(self._store, settings, bindings, begin)


def _all_made(made: Iterable[Made | None]) -> list[Made] | None:
    """Return all objects; None if one of them is None."""
    each = list(made)
    found = [one for one in each if one is not None]
    return found if len(found) == len(each) else None

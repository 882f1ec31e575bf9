"""Steps that were checked once and are taken again, with other gradients.

What takes longest about a step of many small variables, besides the step, is to find
out what it needs: state, names, and that everything fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.wire.segment import starts
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.joint_groups import Joint, JointGroup
from stratagem_psserver.optimization.repeated_groups import (
    Gradients,
    Group,
    Parameter,
    RepeatedGroup,
)
from stratagem_psserver.optimization.steps import Group as CheckedGroup
from stratagem_psserver.optimization.steps import OptimizerStep
from stratagem_psserver.variables.store import VariableStore

_NONE = Gradients(())


class RepeatedStep:
    """A step of dense gradients whose state is all there.

    It holds until a variable of the store comes, goes or is replaced. Who takes it has
    the locks of its variables from `Optimizers.repeat` to `Optimizers.commit`.

    Args:
        checked: The step as it was taken before.
        groups: Those of its param groups that have variables.

    Attributes:
        program: The optimizer.
        variables: What is stepped, in the order of the gradients.
        nbytes: Size of the gradients.
        is_joint: Whether it is better taken with all gradients in one.
    """

    def __init__(self, checked: OptimizerStep, groups: Sequence[RepeatedGroup]) -> None:
        # Without hyperparameters, and without the request that it was part of.
        self.program = OptimizerProgram(
            name=checked.program.name, class_name=checked.program.class_name
        )
        self.variables = checked.variables
        self.nbytes = checked.nbytes
        self._groups, self._number_of_groups = groups, len(checked.groups)
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
        numbered = enumerate(checked.groups)
        made = [making.group(number, each) for number, each in numbered if each.loans]
        groups = [group for group in made if group is not None]
        return cls(checked, groups) if len(groups) == len(made) else None

    def begin(self, settings: Sequence[Settings], gradients: Gradients) -> bool:
        """As `Optimizers.repeat`, with the hyperparameters of each group."""
        same = len(settings) == self._number_of_groups
        taken = same and all(group.accepts(settings) for group in self._groups)
        if taken:
            # What is refused must not stay here.
            self._gradients = gradients
        return taken

    def run(self) -> None:
        """Changes the values of the variables and their slots."""
        # They are in the memory of a request that is answered when this is over.
        gradients, self._gradients = self._gradients, _NONE
        for group in self._groups:
            group.step(gradients)

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
        self._begins, _ = starts([each.value.nbytes for each in variables])

    def group(self, number: int, checked: CheckedGroup) -> RepeatedGroup | None:
        """It; None if it cannot be taken again."""
        places = [self._places[id(loan.variable)] for loan in checked.loans]
        joint = self._joint(checked, places)
        numbered = zip(checked.loans, places, strict=True)
        found = [Parameter.of(loan, place) for loan, place in numbered]
        parameters = [each for each in found if each is not None]
        if len(parameters) < len(found):
            return None
        group = Group(number, checked.settings, parameters)
        return JointGroup(number, checked.settings, group, joint) if joint else group

    def _joint(self, checked: CheckedGroup, places: Sequence[int]) -> Joint | None:
        first = places[0]
        if list(places) != list(range(first, first + len(places))):
            return None
        before = self._begins[first]
        return Joint.of(self._store, checked.settings, checked.loans, before)

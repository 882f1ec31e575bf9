"""What was worked out for a training step, kept for those like it.

Steps repeat: all workers ask for the same over and over, with other numbers. As a
database keeps the plans of queries by their text, a server keeps those of updates by
what they have in common. A plan never says whether a request may be carried out now:
numbering, locks, budgets and limits are looked at each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.mutations import Staged
from stratagem_psserver.limits.recent import Recent
from stratagem_psserver.optimization.repeated_groups import Gradients
from stratagem_psserver.optimization.repeated_steps import RepeatedStep
from stratagem_psserver.plans.permitted import may_all_be_planned, may_be_planned
from stratagem_psserver.plans.update_text import unchanging
from stratagem_psserver.variables.read_plans import ReadPlan
from stratagem_psserver.variables.store import VariableStore

MAX_PLANS = 256

# Of the texts of all plans, which have some 50 a variable. With what is worked out for
# it that is about 1 KiB.
MAX_TEXT_BYTES = 1 << 20


class StepPlan:
    """What is known of updates of one text.

    Args:
        common: What they have in common.
        text: The same, encoded.

    Attributes:
        text: What they have in common.
        names: The variables to step.
        step: What they do, while `holds`; None if it is not known.
    """

    def __init__(self, common: pb.UpdateHeader, text: bytes) -> None:
        self.text = text
        self.names = [gradient.variable for gradient in common.gradients]
        self.step: RepeatedStep | None = None
        self._places = [gradient.tensor for gradient in common.gradients]
        self._rows = list(map(_rows_of, common.gradients))
        # How many rows there are is another number with each step.
        is_of_rows = any(place is not None for place in self._rows)
        self._manifest = None if is_of_rows else Manifest(common.tensors)
        self._is_in_order = self._places == list(range(len(self._places)))
        self._choice: ReadPlan | None = None
        self._owners: list[str] = []
        self._generation = -1

    def manifest(self, header: pb.UpdateHeader) -> Manifest:
        """The tensors of one of these updates."""
        return self._manifest or Manifest(header.tensors)

    def holds(self, store: VariableStore) -> bool:
        """Whether the variables are still those that were looked at."""
        return self._generation == store.generation

    def renew(self, store: VariableStore, step: RepeatedStep | None) -> None:
        """Takes over what the update does to the variables that there are now."""
        self.step, self._generation = step, store.generation
        self._owners, self._choice = store.owners(self.names), None

    def owners(self, store: VariableStore) -> list[str]:
        """As `VariableStore.owners`, of the variables to step."""
        return self._owners if self.holds(store) else store.owners(self.names)

    def gradients(self, staged: Staged) -> Gradients:
        """The gradients among the tensors of an update, which has a step."""
        tensors = staged.tensors
        each = [tensors[place] for place in self._places]
        if self._manifest is None:
            rows = [None if place is None else tensors[place] for place in self._rows]
            return Gradients(each, rows)
        is_joint = self.step is not None and self.step.is_joint
        if not is_joint or staged.segment is None or not self._is_in_order:
            return Gradients(each)
        return Gradients(each, joint=self._manifest.joint(staged.segment))

    def choice(
        self, store: VariableStore, selections: Sequence[pb.Selection]
    ) -> ReadPlan:
        """What is answered to an update, by what it selects.

        Raises:
            StratagemError: As of `ReadPlan.of`.
        """
        holds = self.holds(store)
        if holds and self._choice is not None and self._choice.is_still(selections):
            return self._choice
        choice = ReadPlan.of(store, selections)
        if holds and choice.is_whole:
            self._choice = choice
        return choice


class Known(NamedTuple):
    """What is known of an update.

    Attributes:
        plan: Its plan.
        manifest: Its tensors.
    """

    plan: StepPlan
    manifest: Manifest


class StepPlans:
    """Some plans, which are dropped when variables come, go, or are replaced.

    Args:
        store: Of these variables.
    """

    def __init__(self, store: VariableStore) -> None:
        self._clear()
        store.watch(self._clear)

    def __len__(self) -> int:
        return len(self._plans)

    def known(self, header: pb.UpdateHeader, text: bytes) -> Known | None:
        """As `plan`, with what the update says of its tensors.

        Args:
            header: The update.
            text: The same with its tag and size, as it came in a frame; empty if it
                did not.
        """
        repeated = unchanging(text) if text else b""
        if (known := self._repeated.get(repeated)) is not None:
            return known
        if (plan := self.plan(header)) is None:
            return None
        known = Known(plan, plan.manifest(header))
        if repeated and plan.text in self._plans:
            self._repeated.put(repeated, known)
        return known

    def plan(self, header: pb.UpdateHeader) -> StepPlan | None:
        """The plan of an update, which is a new one unless it was kept.

        Returns:
            None if the update is none that repeats.
        """
        if not _is_step(header):
            return None
        common = _common(header)
        encoded = common.SerializeToString()
        plan = self._plans.get(encoded)
        if plan is None and len(encoded) <= MAX_TEXT_BYTES and _is_plain(header):
            plan = StepPlan(common, encoded)
        return plan

    def keep(self, plan: StepPlan) -> None:
        """Keeps the plan of an update that was carried out; of others nothing stays."""
        if plan.text not in self._plans:
            self._plans.put(plan.text, plan)

    def _clear(self) -> None:
        self._plans = Recent[bytes, StepPlan](MAX_PLANS, MAX_TEXT_BYTES)
        self._repeated = Recent[bytes, Known](MAX_PLANS, MAX_TEXT_BYTES)


def _is_step(header: pb.UpdateHeader) -> bool:
    """Whether it is an optimizer's, with the tensors of its gradients and no more."""
    is_step = header.program.WhichOneof("kind") == "optimizer"
    of_rows = sum([each.HasField("rows") for each in header.gradients])
    fits = len(header.tensors) == len(header.gradients) + of_rows
    return is_step and fits and may_be_planned(header)


def _is_plain(header: pb.UpdateHeader) -> bool:
    """Whether a plan honours all of it, and each gradient of rows has its tensors."""
    gradients = header.gradients
    rows = [place for place in map(_rows_of, gradients) if place is not None]
    # Of what is no gradient of rows, the plan knows how large it is.
    places = sorted([*rows, *(each.tensor for each in gradients)])
    is_apart = not rows or places == list(range(len(header.tensors)))
    return is_apart and may_all_be_planned(header)


def _rows_of(gradient: pb.GradientRef) -> int | None:
    """The tensor that says which rows a gradient is of; None if it is of all."""
    return gradient.rows if gradient.HasField("rows") else None


def _common(header: pb.UpdateHeader) -> pb.UpdateHeader:
    """All of an update but what is another number with each step."""
    common = type(header)()
    common.CopyFrom(header)
    common.ClearField("key")
    common.program.optimizer.ClearField("groups")
    common.then.ClearField("begins")
    for selection in common.then.selections:
        selection.ClearField("newer_than")
    for gradient in common.gradients:
        if (rows := _rows_of(gradient)) is not None:
            _forget_count(common, gradient.tensor)
            _forget_count(common, rows)
    return common


def _forget_count(header: pb.UpdateHeader, place: int) -> None:
    """Takes the number of rows from what is said of a tensor."""
    if place < len(header.tensors) and header.tensors[place].shape:
        header.tensors[place].shape[0] = 0

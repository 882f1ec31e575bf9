"""Plans of training steps, kept for the updates that repeat them.

All workers send the same update over and over, with other numbers. As a database keeps the plans of
queries by their text, a server keeps the plans of updates by what the updates have in common. A
plan does not decide whether a request may be applied: numbering, locks, budgets and limits are
checked each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.parameter_server_pb2 import JointRows, Selection
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.receiving import StagedTensors
from stratagem_psserver.fast.repeatable_updates import (
    common_part,
    is_repeatable,
    is_step,
    rows_of,
    unchanging_bytes,
)
from stratagem_psserver.fast.repeated_groups import Gradients
from stratagem_psserver.fast.repeated_steps import RepeatedStep
from stratagem_psserver.limits import LruCache
from stratagem_psserver.optimization.steps import CheckedStep
from stratagem_psserver.variables.read_plans import ReadPlan
from stratagem_psserver.variables.store import VariableStore

MAX_PLANS = 256

# The texts of all plans together. A text has some 50 bytes per variable, and the plan itself about
# 1 KiB per variable.
MAX_TEXT_BYTES = 1 << 20


class StepPlan:
    """The plan of updates that have a common part.

    Args:
        common: The common part of their headers.
        text: The common part, encoded.

    Attributes:
        text: As the argument.
        names: The variables to step.
        step: The step, which can be repeated while `holds` is true; None if it must be checked each
            time.
    """

    def __init__(self, common: pb.UpdateHeader, text: bytes) -> None:
        self.text = text
        self.names = [gradient.variable for gradient in common.gradients]
        self.step: RepeatedStep | None = None
        self._places = [gradient.tensor for gradient in common.gradients]
        self._rows = list(map(rows_of, common.gradients))
        # The number of rows differs from step to step.
        is_of_rows = any(place is not None for place in self._rows)
        self._manifest = None if is_of_rows else Manifest(common.tensors, borrows=True)
        self._is_in_order = self._places == list(range(len(self._places)))
        self._read: ReadPlan | None = None
        self._owners: list[str] = []
        self._generation = -1

    def manifest(self, header: pb.UpdateHeader) -> Manifest:
        """Return the description of the tensors of one of these updates."""
        return self._manifest or Manifest(header.tensors, borrows=True, splits=header.splits)

    def holds(self, store: VariableStore) -> bool:
        """Return whether no variable was added, removed or replaced since the plan was made."""
        return self._generation == store.generation

    def renew(self, store: VariableStore, step: RepeatedStep | None) -> None:
        """Replace the step by one for the present variables."""
        self.step, self._generation = step, store.generation
        self._owners, self._read = store.owners(self.names), None

    def owners(self, store: VariableStore) -> list[str]:
        """Return the owners of the variables to step; see `VariableStore.owners`."""
        return self._owners if self.holds(store) else store.owners(self.names)

    def gradients(self, staged: StagedTensors) -> Gradients:
        """Return the gradients among the tensors of an update."""
        tensors = staged.tensors
        each = [tensors[place] for place in self._places]
        if self._manifest is None:
            rows = [None if place is None else tensors[place] for place in self._rows]
            return Gradients(each, rows)
        is_flat = self.step is not None and self.step.is_flat
        if not is_flat or staged.segment is None or not self._is_in_order:
            return Gradients(each)
        return Gradients(each, flat=self._manifest.flat(staged.segment))

    def read_plan(
        self,
        store: VariableStore,
        selections: Sequence[pb.Selection],
        joint_rows: Sequence[JointRows] = (),
    ) -> ReadPlan:
        """Return the plan of the read that follows an update.

        Raises:
            StratagemError: As for `ReadPlan.of`.
        """
        holds, planned = self.holds(store), self._read
        if not holds or planned is None or not planned.is_still(selections):
            planned = ReadPlan.of(store, selections)
            if holds and planned.is_whole:
                self._read = planned
        return planned.with_rows(store, joint_rows)


class Recognised(NamedTuple):
    """An update that has a plan.

    Attributes:
        plan: The plan.
        manifest: The description of the update's tensors.
    """

    plan: StepPlan
    manifest: Manifest


class StepPlans:
    """The plans for the variables of a store; adding or removing a variable drops all plans.

    For each update call `recognise`. If the step of the plan cannot be repeated, check the update
    in full and pass the step to `learn`.
    """

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        self._clear()
        store.watch(self._clear)

    def __len__(self) -> int:
        return len(self._plans)

    def recognise(self, header: pb.UpdateHeader, text: bytes) -> Recognised | None:
        """Find or make the plan of an update.

        Args:
            header: The update.
            text: The encoded update with its tag and size in the frame; empty if it is not known.

        Returns:
            The plan; None if updates of this kind have none.
        """
        repeated = unchanging_bytes(text) if text else b""
        if (found := self._repeated.get(repeated)) is not None:
            return found
        if (plan := self.plan(header)) is None:
            return None
        found = Recognised(plan, plan.manifest(header))
        if repeated and plan.text in self._plans:
            self._repeated.put(repeated, found)
        return found

    def plan(self, header: pb.UpdateHeader) -> StepPlan | None:
        """Find or make the plan of an update by its decoded header."""
        if not is_step(header):
            return None
        common = common_part(header)
        encoded = common.SerializeToString()
        plan = self._plans.get(encoded)
        if plan is None and len(encoded) <= MAX_TEXT_BYTES and is_repeatable(header):
            plan = StepPlan(common, encoded)
        return plan

    def learn(self, plan: StepPlan, step: CheckedStep) -> None:
        """Keep a plan with a step that has run; the locks of the step are held."""
        plan.renew(self._store, RepeatedStep.of(step, self._store))
        self.keep(plan)

    def keep(self, plan: StepPlan) -> None:
        """Keep a plan; plans of updates that failed are never kept."""
        if plan.text not in self._plans:
            self._plans.put(plan.text, plan)

    def _clear(self) -> None:
        self._plans = LruCache[bytes, StepPlan](MAX_PLANS, MAX_TEXT_BYTES)
        self._repeated = LruCache[bytes, Recognised](MAX_PLANS, MAX_TEXT_BYTES)


# The most names in all cached plans; a plan has about 1 KiB per name.
MOST_NAMES = 4096


class ReadPlanCache:
    """The plans of reads of whole variables; adding or removing a variable drops all plans."""

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        self._clear()
        store.watch(self._clear)

    def of(self, selections: Sequence[Selection], joint_rows: Sequence[JointRows] = ()) -> ReadPlan:
        """Return the plan of a read of the present variables; see `ReadPlan.of`."""
        return self._of_variables(selections).with_rows(self._store, joint_rows)

    def _of_variables(self, selections: Sequence[Selection]) -> ReadPlan:
        if not all(map(_is_of_all, selections)):
            return ReadPlan.of(self._store, selections)
        names = tuple([selection.variable for selection in selections])
        kept = self._kept.get(names)
        if kept is not None and kept.is_still(selections):
            return kept
        plan = ReadPlan.of(self._store, selections)
        if plan.is_whole:
            self._kept.put(names, plan)
        return plan

    def _clear(self) -> None:
        self._kept = LruCache[tuple[str, ...], ReadPlan](MOST_NAMES, MOST_NAMES)


def _is_of_all(selection: Selection) -> bool:
    """Return whether a whole variable is selected, in its own dtype."""
    is_part = selection.WhichOneof("part") is not None
    return not is_part and not selection.HasField("narrowed_to")

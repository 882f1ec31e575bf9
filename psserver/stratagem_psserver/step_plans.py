"""What was worked out for a training step, kept for those like it.

Steps repeat: all workers ask for the same over and over, with other numbers. As a
database keeps the plans of queries by their text, a server keeps those of updates by
what they have in common. A plan never says whether a request may be carried out now:
numbering, locks, budgets and limits are looked at each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.optimization.repeated_steps import RepeatedStep
from stratagem_psserver.variables.choices import Choice
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
        manifest: Their tensors.
        names: The variables to step.
        step: What they do, while `holds`; None if it is not known.
    """

    def __init__(self, common: pb.UpdateHeader, text: bytes) -> None:
        self.text = text
        self.manifest = Manifest(common.tensors)
        self.names = [gradient.variable for gradient in common.gradients]
        self.step: RepeatedStep | None = None
        self._places = [gradient.tensor for gradient in common.gradients]
        self._choice: Choice | None = None
        self._generation = -1

    def holds(self, store: VariableStore) -> bool:
        """Whether the variables are still those that were looked at."""
        return self._generation == store.generation

    def renew(self, store: VariableStore, step: RepeatedStep | None) -> None:
        """Takes over what the update does to the variables that there are now."""
        self.step, self._generation = step, store.generation
        self._choice = None

    def gradients(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients among the tensors of an update, which has a step."""
        return [tensors[place] for place in self._places]

    def choice(
        self, store: VariableStore, selections: Sequence[pb.Selection]
    ) -> Choice:
        """What is answered to an update, by what it selects.

        Raises:
            StratagemError: As of `Choice.of`.
        """
        holds = self.holds(store)
        if holds and self._choice is not None and self._choice.is_still(selections):
            return self._choice
        choice = Choice.of(store, selections)
        if holds and choice.is_whole:
            self._choice = choice
        return choice


class StepPlans:
    """Some plans, which are dropped when variables come, go, or are replaced.

    Args:
        store: Of these variables.
    """

    def __init__(self, store: VariableStore) -> None:
        # By text; those that were asked for last are at the end.
        self._plans: OrderedDict[bytes, StepPlan] = OrderedDict()
        self._text_bytes = 0
        store.watch(self._clear)

    def __len__(self) -> int:
        return len(self._plans)

    def plan(self, header: pb.UpdateHeader) -> StepPlan | None:
        """The plan of an update, which is a new one unless it was kept.

        Returns:
            None if the update is none that repeats.
        """
        if not _is_step(header):
            return None
        common = _common(header)
        text = common.SerializeToString()
        if (plan := self._plans.get(text)) is not None:
            self._plans.move_to_end(text)
        elif len(text) <= MAX_TEXT_BYTES and _is_plain(header):
            plan = StepPlan(common, text)
        return plan

    def keep(self, plan: StepPlan) -> None:
        """Keeps the plan of an update that was carried out; of others nothing stays."""
        if plan.text in self._plans:
            return
        self._plans[plan.text] = plan
        self._text_bytes += len(plan.text)
        while len(self._plans) > MAX_PLANS or self._text_bytes > MAX_TEXT_BYTES:
            dropped, _ = self._plans.popitem(last=False)
            self._text_bytes -= len(dropped)

    def _clear(self) -> None:
        self._plans.clear()
        self._text_bytes = 0


def _is_step(header: pb.UpdateHeader) -> bool:
    """Whether it is an optimizer's, with one tensor for each gradient and no more."""
    is_step = header.program.WhichOneof("kind") == "optimizer"
    is_part = header.HasField("contribution") or header.HasField("backward")
    is_limited = header.HasField("limits")
    fits = len(header.tensors) == len(header.gradients)
    return is_step and fits and not is_part and not is_limited


def _is_plain(header: pb.UpdateHeader) -> bool:
    """Whether gradients are as they are, and rows are neither given nor asked for."""
    return not any(
        each.HasField("rows") or each.HasField("encoding") for each in header.gradients
    ) and not any(each.HasField("rows") for each in header.then.selections)


def _common(header: pb.UpdateHeader) -> pb.UpdateHeader:
    """All of an update but what is another number with each step."""
    common = pb.UpdateHeader()
    common.CopyFrom(header)
    common.ClearField("key")
    common.program.optimizer.ClearField("groups")
    common.then.ClearField("begins")
    for selection in common.then.selections:
        selection.ClearField("newer_than")
    return common

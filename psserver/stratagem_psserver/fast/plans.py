"""Plans of training steps, kept for the updates that repeat them.

All workers send the same update over and over, with other numbers. As a database keeps the plans of
queries by their text, a server keeps the plans of updates by what the updates have in common. A
plan does not decide whether a request may be applied: numbering, locks, budgets and limits are
checked each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.parameter_server_pb2 import JointRows, Selection
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram
from stratagem_psserver.exactly_once.receiving import Manifest, StagedTensors
from stratagem_psserver.fast.repeated_steps import RepeatedStep
from stratagem_psserver.limits import LruCache
from stratagem_psserver.optimization.gradients import StepGradients
from stratagem_psserver.optimization.optimizers import CheckedStep
from stratagem_psserver.variables.reads import ReadPlan
from stratagem_psserver.variables.store import VariableStore

# The fields that a plan honours, by message. An update with any other field is always checked in
# full, since a plan would ignore that field from the second update on. So a field that is added
# later is not ignored.
_PERMITTED: Mapping[str, frozenset[str]] = {
    message.DESCRIPTOR.full_name: frozenset(names)
    for message, names in (
        (pb.UpdateHeader, {"key", "program", "gradients", "tensors", "then", "splits"}),
        (pb.TensorSplit, {"tensor", "sizes"}),
        (UpdateProgram, {"optimizer"}),
        (OptimizerProgram, {"name", "class_name", "groups"}),
        (pb.GradientRef, {"variable", "tensor", "group", "rows"}),
        (TensorSpec, {"dtype", "shape"}),
        (pb.FollowingRead, {"selections", "begins", "joint_rows", "announced_rows"}),
        (pb.Selection, {"variable", "newer_than", "slice", "narrowed_to"}),
        (pb.Slice, {"start", "size"}),
    )
}
_IN_HEADER = _PERMITTED[pb.UpdateHeader.DESCRIPTOR.full_name]

# The server reads these again from each update, so all of their fields are honoured.
_READ_EACH_TIME = frozenset({"key", "groups", "begins", "joint_rows", "announced_rows"})


def is_step(header: pb.UpdateHeader) -> bool:
    """Return whether an update is an optimizer's step with no tensors but those of its gradients.

    Only the fields of the header itself are checked; see `is_repeatable`.
    """
    is_optimizer = header.program.WhichOneof("kind") == "optimizer"
    of_rows = sum([each.HasField("rows") for each in header.gradients])
    fits = _count(header) == len(header.gradients) + of_rows
    permitted = all([field.name in _IN_HEADER for field, _ in header.ListFields()])
    return is_optimizer and fits and permitted


def is_repeatable(header: pb.UpdateHeader) -> bool:
    """Return whether a plan honours all fields of a step, at any depth."""
    gradients = header.gradients
    rows = [place for place in map(rows_of, gradients) if place is not None]
    # A plan knows the size of every tensor except those of row-sparse gradients.
    places = sorted([*rows, *(each.tensor for each in gradients)])
    each_has_one_use = not rows or places == list(range(_count(header)))
    return each_has_one_use and _is_permitted(header)


def rows_of(gradient: pb.GradientRef) -> int | None:
    """Return the index of the tensor with a gradient's rows; None if the gradient is dense."""
    return gradient.rows if gradient.HasField("rows") else None


def common_part(header: pb.UpdateHeader) -> pb.UpdateHeader:
    """Return a copy without the numbers that differ from step to step."""
    common = type(header)()
    common.CopyFrom(header)
    common.ClearField("key")
    common.program.optimizer.ClearField("groups")
    common.then.ClearField("begins")
    common.then.ClearField("joint_rows")
    common.then.ClearField("announced_rows")
    for selection in common.then.selections:
        selection.ClearField("newer_than")
    # The tensor of the stream that each tensor is, or is a piece of.
    pieces = {split.tensor: len(split.sizes) for split in header.splits}
    each = range(len(header.tensors))
    listed = [place for place in each for _ in range(pieces.get(place, 1))]
    for gradient in common.gradients:
        if (rows := rows_of(gradient)) is not None:
            _forget_count(common, listed, gradient.tensor)
            _forget_count(common, listed, rows)
    for split in common.splits:
        # How many pieces there are says which tensor is whose.
        split.sizes[:] = [0] * len(split.sizes)
    return common


def _count(header: pb.UpdateHeader) -> int:
    """Return how many tensors there are, with the pieces of those that are several ones."""
    pieces = sum([len(split.sizes) for split in header.splits])
    return len(header.tensors) - len(header.splits) + pieces


def unchanging_bytes(text: bytes) -> bytes:
    """Return the part of an encoded update that is the same in each step.

    Clients encode first the request's key, the steps that it begins and the rows that it reads.
    Finding a plan by the bytes after these is faster than by the decoded header.

    Args:
        text: The encoded update with its tag and size in the frame.

    Returns:
        The bytes; empty if the update does not begin in that way.
    """
    _, at = _sized(text, 0)
    if text[at : at + 1] != _KEY:
        return b""
    size, at = _sized(text, at)
    at += size
    if text[at : at + 1] == _THEN:
        size, at = _sized(text, at)
        end = at + size
        while at < end:
            if text[at : at + 1] not in (_BEGINS, _JOINT_ROWS):
                return b""
            size, at = _sized(text, at)
            at += size
    return text[at:]


def _is_permitted(message: Message) -> bool:
    names = _PERMITTED.get(message.DESCRIPTOR.full_name, frozenset())
    return all(
        field.name in names and all(map(_is_permitted, _planned_parts(field, value)))
        for field, value in message.ListFields()
    )


def _planned_parts(field: FieldDescriptor, value: object) -> Iterable[Message]:
    """Return the messages in a field that are part of a plan."""
    if field.message_type is None or field.name in _READ_EACH_TIME:
        return ()
    return (value,) if isinstance(value, Message) else value  # type: ignore[return-value]


def _forget_count(header: pb.UpdateHeader, listed: Sequence[int], place: int) -> None:
    """Clear the number of rows in the description of a tensor."""
    if place < len(listed) and header.tensors[listed[place]].shape:
        header.tensors[listed[place]].shape[0] = 0


def _tag(number: int) -> bytes:
    """Return the tag of a message field with a number below 16."""
    return bytes([number << 3 | 2])


_KEY = _tag(pb.UpdateHeader.KEY_FIELD_NUMBER)
_THEN = _tag(pb.UpdateHeader.THEN_FIELD_NUMBER)
_BEGINS = _tag(pb.FollowingRead.BEGINS_FIELD_NUMBER)
_JOINT_ROWS = _tag(pb.FollowingRead.JOINT_ROWS_FIELD_NUMBER)


def _sized(text: bytes, at: int) -> tuple[int, int]:
    """Return the size of the message in the field at an offset, and where the message begins."""
    size = shift = 0
    while True:
        at += 1
        size |= (text[at] & 0x7F) << shift
        if text[at] < 0x80:
            return size, at + 1
        shift += 7


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

    def gradients(self, staged: StagedTensors) -> StepGradients:
        """Return the gradients among the tensors of an update."""
        tensors = staged.tensors
        each = [tensors[place] for place in self._places]
        if self._manifest is None:
            rows = [None if place is None else tensors[place] for place in self._rows]
            return StepGradients(each, rows)
        is_flat = self.step is not None and self.step.is_flat
        if not is_flat or staged.segment is None or not self._is_in_order:
            return StepGradients(each)
        return StepGradients(each, flat=self._manifest.flat(staged.segment))

    def read_plan(
        self,
        store: VariableStore,
        selections: Sequence[pb.Selection],
        joint_rows: Sequence[JointRows] = (),
    ) -> ReadPlan:
        """Return the plan of the read that follows an update.

        Raises:
            StratagemError: As for `ReadPlan.for_selections`.
        """
        holds, planned = self.holds(store), self._read
        if not holds or planned is None or not planned.is_still(selections):
            planned = ReadPlan.for_selections(store, selections)
            if holds and planned.is_whole:
                self._read = planned
        return planned.with_rows(store, joint_rows) if joint_rows else planned


class CachedPlan(NamedTuple):
    """An update that has a plan.

    Attributes:
        plan: The plan.
        manifest: The description of the update's tensors.
    """

    plan: StepPlan
    manifest: Manifest


class StepPlans:
    """The plans for the variables of a store; adding or removing a variable drops all plans.

    A plan is what a full check has found, for as long as it stays true: the full check of a step
    makes the plan, and the plan repeats what the check would find again, so both give the same
    bytes.

    For each update call `recognise`. If the step of the plan cannot be repeated, check the update
    in full and pass the step to `learn`.
    """

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        self._clear()
        store.watch(self._clear)

    def __len__(self) -> int:
        return len(self._plans)

    def recognise(self, header: pb.UpdateHeader, text: bytes) -> CachedPlan | None:
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
        found = CachedPlan(plan, plan.manifest(header))
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
        plan.renew(self._store, RepeatedStep.from_checked(step, self._store))
        self.keep(plan)

    def keep(self, plan: StepPlan) -> None:
        """Keep a plan; plans of updates that failed are never kept."""
        if plan.text not in self._plans:
            self._plans.put(plan.text, plan)

    def _clear(self) -> None:
        self._plans = LruCache[bytes, StepPlan](MAX_PLANS, MAX_TEXT_BYTES)
        self._repeated = LruCache[bytes, CachedPlan](MAX_PLANS, MAX_TEXT_BYTES)


# The most names in all cached plans; a plan has about 1 KiB per name.
MOST_NAMES = 4096


class ReadPlanCache:
    """The plans of reads of whole variables; adding or removing a variable drops all plans."""

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        self._clear()
        store.watch(self._clear)

    def plan(
        self, selections: Sequence[Selection], joint_rows: Sequence[JointRows] = ()
    ) -> ReadPlan:
        """Return the plan of a read of the present variables; see `ReadPlan.for_selections`."""
        names: tuple[str, ...] = ()
        if all([one.WhichOneof("part") is None for one in selections]) and not any(
            [one.HasField("narrowed_to") for one in selections]
        ):
            names = tuple([one.variable for one in selections])
        kept = self._kept.get(names)
        if kept is None or not kept.is_still(selections):
            kept = ReadPlan.for_selections(self._store, selections)
            if names and kept.is_whole:
                self._kept.put(names, kept)
        return kept.with_rows(self._store, joint_rows)

    def _clear(self) -> None:
        self._kept = LruCache[tuple[str, ...], ReadPlan](MOST_NAMES, MOST_NAMES)

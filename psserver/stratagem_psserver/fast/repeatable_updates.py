"""Which updates can have a plan, and the bytes by which their plan is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram

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
        (pb.FollowingRead, {"selections", "begins", "joint_rows"}),
        (pb.Selection, {"variable", "newer_than", "slice", "narrowed_to"}),
        (pb.Slice, {"start", "size"}),
    )
}
_IN_HEADER = _PERMITTED[pb.UpdateHeader.DESCRIPTOR.full_name]

# The server reads these again from each update, so all of their fields are honoured.
_READ_EACH_TIME = frozenset({"key", "groups", "begins", "joint_rows"})


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
    for selection in common.then.selections:
        selection.ClearField("newer_than")
    listed = _listed(common)
    for gradient in common.gradients:
        if (rows := rows_of(gradient)) is not None:
            _forget_count(common, listed, gradient.tensor)
            _forget_count(common, listed, rows)
    for split in common.splits:
        # How many pieces there are says which tensor is whose.
        split.sizes[:] = [0] * len(split.sizes)
    return common


def _listed(header: pb.UpdateHeader) -> list[int]:
    """Return the tensor of the stream that each tensor is, or is a piece of."""
    pieces = {split.tensor: len(split.sizes) for split in header.splits}
    each = range(len(header.tensors))
    return [place for place in each for _ in range(pieces.get(place, 1))]


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

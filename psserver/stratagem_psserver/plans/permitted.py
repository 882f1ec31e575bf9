"""The fields of an update that a plan honours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram

# By message. A field that is not here was added later, or is not for plans: the update
# is carried out in full each time, as a plan would skip the field from the second on.
_FIELDS: Mapping[str, frozenset[str]] = {
    message.DESCRIPTOR.full_name: frozenset(names)
    for message, names in (
        (pb.UpdateHeader, {"key", "program", "gradients", "tensors", "then"}),
        (UpdateProgram, {"optimizer"}),
        (OptimizerProgram, {"name", "class_name", "groups"}),
        (pb.GradientRef, {"variable", "tensor", "group", "rows"}),
        (TensorSpec, {"dtype", "shape"}),
        (pb.FollowingRead, {"selections", "begins"}),
        (pb.Selection, {"variable", "newer_than", "slice", "narrowed_to"}),
        (pb.Slice, {"start", "size"}),
    )
}
_OF_HEADER = _FIELDS[pb.UpdateHeader.DESCRIPTOR.full_name]

# Looked at with each update, so all that they may ever have is.
_NEVER_PLANNED = frozenset({"key", "groups", "begins"})


def may_be_planned(header: pb.UpdateHeader) -> bool:
    """Whether an update's own fields are among those that a plan honours."""
    return all([field.name in _OF_HEADER for field, _ in header.ListFields()])


def may_all_be_planned(message: Message) -> bool:
    """Whether a plan honours all of an update, or of a message in it."""
    names = _FIELDS.get(message.DESCRIPTOR.full_name, frozenset())
    return all(
        field.name in names and all(map(may_all_be_planned, _parts(field, value)))
        for field, value in message.ListFields()
    )


def _parts(field: FieldDescriptor, value: object) -> Iterable[Message]:
    """The messages in a field that a plan would stand for."""
    if field.message_type is None or field.name in _NEVER_PLANNED:
        return ()
    return (value,) if isinstance(value, Message) else value  # type: ignore[return-value]

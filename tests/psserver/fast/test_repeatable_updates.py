"""A field that is added to an update keeps plans away until they honour it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.fast.plans import StepPlans
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.fast.headers import header

ADDED = "added_later"

# Where in an update a message is, as the path of its fields.
PLACES = {
    "UpdateHeader": "",
    "UpdateProgram": "program",
    "OptimizerProgram": "program.optimizer",
    "GradientRef": "gradients",
    "TensorSpec": "tensors",
    "FollowingRead": "then",
    "Selection": "then.selections",
}


def with_a_field_more(message: str) -> type[Any]:
    """The class of updates of a contract in which that message has another field."""
    pool = DescriptorPool()
    add(pool, pb.DESCRIPTOR, message, set())
    return GetMessageClass(pool.FindMessageTypeByName(pb.UpdateHeader.DESCRIPTOR.full_name))


def add(pool: DescriptorPool, file: Any, message: str, done: set[str]) -> None:
    if file.name in done:
        return
    done.add(file.name)
    for needed in file.dependencies:
        add(pool, needed, message, done)
    copied = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copied)
    for each in copied.message_type:
        if each.name == message:
            kind = descriptor_pb2.FieldDescriptorProto
            each.field.add(name=ADDED, number=999, type=kind.TYPE_BOOL, label=kind.LABEL_OPTIONAL)
    pool.Add(copied)


def asked() -> pb.UpdateHeader:
    update = header()
    update.then.selections.add(variable="w")
    return update


def at(update: Any, place: str) -> Any:
    for name in filter(None, place.split(".")):
        found = getattr(update, name)
        update = found if hasattr(found, "DESCRIPTOR") else found[0]
    return update


@pytest.mark.parametrize("message", PLACES)
def test_a_field_that_plans_do_not_know_keeps_them_away(message: str) -> None:
    update = with_a_field_more(message).FromString(asked().SerializeToString())
    plans = StepPlans(VariableStore())
    assert plans.plan(update) is not None
    setattr(at(update, PLACES[message]), ADDED, True)
    assert plans.plan(update) is None


def test_a_plan_that_is_kept_is_not_used_for_an_update_with_another_field() -> None:
    plans = StepPlans(VariableStore())
    update = with_a_field_more("GradientRef").FromString(asked().SerializeToString())
    plan = plans.plan(update)
    assert plan is not None
    plans.keep(plan)
    assert plans.plan(update) is plan
    update.gradients[0].added_later = True
    assert plans.plan(update) is None

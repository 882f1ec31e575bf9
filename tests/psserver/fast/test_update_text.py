"""Updates are recognised by what clients send with each step, and by nothing less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.frames import encode_header
from stratagem_psserver.fast import plans as step_plans
from stratagem_psserver.fast.plans import StepPlan, StepPlans
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.fast.headers import header, kept

pytestmark = pytest.mark.fast_servers


def in_a_frame(*parts: pb.UpdateHeader) -> bytes:
    """A header that is sent in some parts, with its tag and size."""
    return encode_header(b"".join(part.SerializeToString() for part in parts))


def numbered(sequence: int, **then: Any) -> pb.UpdateHeader:
    """What an update begins with."""
    begun = pb.UpdateHeader(key=RequestKey(sequence=sequence))
    if then:
        begun.then.CopyFrom(pb.FollowingRead(**then))
    return begun


def whole(*parts: pb.UpdateHeader) -> pb.UpdateHeader:
    return pb.UpdateHeader.FromString(b"".join(p.SerializeToString() for p in parts))


def found(plans: StepPlans, *parts: pb.UpdateHeader) -> StepPlan | None:
    """The plan of what is sent in these parts."""
    known = plans.recognise(whole(*parts), in_a_frame(*parts))
    return None if known is None else known.plan


def test_a_plan_is_found_by_what_is_sent_with_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans, rest = StepPlans(VariableStore()), header()
    rest.ClearField("key")
    rest.then.selections.add(variable="w")
    plan = kept(plans, whole(numbered(1), rest))
    assert found(plans, numbered(2), rest) is plan
    # From now on nothing else is looked at.
    monkeypatch.setattr(step_plans, "is_step", lambda _: False)
    begins = [StepBegin(group="g" * 200, finished=number) for number in range(2)]
    for begun in (numbered(300), numbered(4, begins=begins)):
        assert found(plans, begun, rest) is plan


@pytest.mark.parametrize(
    "begun",
    [
        (numbered(1, selections=[pb.Selection(variable="b")]),),
        (numbered(1, selections=[pb.Selection(variable="b")], begins=[StepBegin()]),),
        (numbered(1), pb.UpdateHeader(nonfinite_variable="w")),
        (pb.UpdateHeader(tensors=[TensorSpec()]), numbered(1)),
    ],
)
def test_a_plan_is_not_found_where_more_is_said(
    begun: Sequence[pb.UpdateHeader],
) -> None:
    plans, rest = StepPlans(VariableStore()), header()
    rest.ClearField("key")
    plan = kept(plans, whole(numbered(1), rest))
    assert found(plans, numbered(2), rest) is plan
    assert found(plans, *begun, rest) is not plan

"""Step plans are used only while they are valid, and are kept up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import is_

import pytest
import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    SessionLostError,
    VariableNotFoundError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.v1.tensor_pb2 import ENCODING_KIND_NARROWED
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.v1.variable_requests_pb2 import (
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
from stratagem_psserver.fast import plans as step_plans
from stratagem_psserver.fast.plans import StepPlans, common_part
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.variables.store import VariableStore
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.fast.headers import NAMES, adam, header, kept
from tests.psserver.wire import (
    RawClient,
    encoded,
    model_spec,
    update_header,
)

pytestmark = pytest.mark.fast_servers


class Training:
    """A client that steps two variables again and again."""

    def __init__(self, server: ParameterServer, client: RawClient) -> None:
        self.server, self.client = server, client
        self.number = 0
        client.open()
        client.create(w=torch.arange(6.0).view(2, 3), b=torch.ones(3))

    def gradients(self) -> dict[str, torch.Tensor]:
        self.number += 1
        infos = self.server._state.store
        return {name: torch.full_like(infos.get(name).value, 1.0 / self.number) for name in NAMES}

    def step(self, program: OptimizerProgram | None = None, times: int = 1) -> None:
        for _ in range(times):
            self.client.update(program or adam(), self.gradients())

    def delete(self, *names: str) -> None:
        request = DeleteVariablesRequest(key=self.client.key(), names=names)
        self.client.unary("DeleteVariables", request, DeleteVariablesResponse)

    @property
    def is_planned(self) -> bool:
        """Whether the next step would be a repetition."""
        store = self.server._state.store
        gradients = {name: store.get(name).value for name in NAMES}
        asked = update_header(RequestKey(), adam(), gradients)
        plan = self.server._state.plans.plan(asked)
        return plan is not None and plan.holds(store) and plan.step is not None


@contextmanager
def training() -> Iterator[Training]:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        yield Training(server, client)


def changed_rate(one: Training) -> None:
    one.step(adam(lr=0.5))


def other_state(one: Training) -> None:
    one.delete(*[name for name in one.client.listing() if "/Adam/" in name])
    one.step(adam(amsgrad=True))


def assigned_state(one: Training) -> None:
    one.client.assign("w/Adam/exp_avg", torch.ones(2, 3))


def assigned_value(one: Training) -> None:
    one.client.assign("w", torch.ones(2, 3))


def recreated(one: Training) -> None:
    one.delete("w")
    one.client.create(w=torch.full((2, 3), 5.0))


def recreated_in_another_shape(one: Training) -> None:
    one.delete("w")
    one.client.create(w=torch.full((4,), 5.0))


def created_beside(one: Training) -> None:
    one.client.create(other=torch.ones(1))


def restored(one: Training) -> None:
    store = one.server._state.store
    store.put_value("w", torch.full((2, 3), 7.0))
    store.put_value("w/Adam/exp_avg", torch.full((2, 3), 0.5))


def stepped_rows(one: Training) -> None:
    header = update_header(one.client.key(), adam(), {"w": torch.ones(1, 3)})
    header.gradients[0].rows = 1
    rows = torch.tensor([1])
    header.tensors.add(dtype=8, shape=[1])
    tensors = [torch.ones(1, 3), rows]
    one.client.upload("Update", encoded(header, tensors), pb.UpdateResponse)


EVENTS = [
    changed_rate,
    other_state,
    assigned_state,
    assigned_value,
    recreated,
    recreated_in_another_shape,
    created_beside,
    pytest.param(restored, marks=pytest.mark.unlogged),
    stepped_rows,
]


@a_few(
    "event",
    EVENTS,
    "events end a plan by one version of the store",
    4,
    ids=lambda event: event.__name__,
)
def test_steps_are_the_same_without_plans(
    event: Callable[[Training], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(planned: bool) -> dict[str, tuple[int, bytes]]:
        with training() as one:
            if not planned:
                monkeypatch.setattr(one.server._state.plans, "plan", lambda *_: None)
            one.step(times=4)
            assert not planned or one.is_planned
            event(one)
            one.step(adam(amsgrad=event is other_state), times=4)
            return one.client.everything()

    assert outcome(planned=True) == outcome(planned=False)


def test_a_plan_of_a_variable_that_is_gone_is_not_used() -> None:
    with training() as one:
        one.step(times=4)
        gradients = one.gradients()
        one.delete("b")
        with pytest.raises(VariableNotFoundError, match="'b'"):
            one.client.update(adam(), gradients)


def test_a_plan_of_a_variable_of_another_shape_is_not_used() -> None:
    with training() as one:
        one.step(times=4)
        gradients = one.gradients()
        recreated_in_another_shape(one)
        with pytest.raises(InvalidArgumentError, match="'w'"):
            one.client.update(adam(), gradients)


def test_a_snapshot_keeps_its_values_while_steps_are_repeated() -> None:
    with training() as one:
        one.step(times=4)
        store, snapshots = one.server._state.store, one.server._state.snapshots
        snapshot = snapshots.take(store)
        before = [variable.value.clone() for variable in store.variables()]
        one.step(times=4)
        assert one.is_planned
        kept = list(snapshot.taken())
        assert all(map(torch.equal, kept, before))
        assert not torch.equal(store.get("w").value, before[0])
        snapshots.close(snapshot)


def test_a_repeated_request_is_applied_once() -> None:
    with training() as one:
        one.step(times=4)
        assert one.is_planned
        gradients = one.gradients()
        asked = update_header(one.client.key(), adam(), gradients)
        messages = encoded(asked, list(gradients.values()))
        replies = {
            one.client.upload("Update", messages, pb.UpdateResponse).SerializeToString()
            for _ in range(2)
        }
        assert len(replies) == 1
        assert one.client.listing()["w"] == 6


@pytest.mark.unlogged
def test_what_is_read_behind_a_step_is_what_is_newer() -> None:
    with training() as one:
        store, plans = one.server._state.store, one.server._state.plans
        one.step(times=4)
        asked = header(*NAMES)
        plan = plans.plan(asked)
        assert plan is not None
        plan.renew(store, None)
        everything = [pb.Selection(variable=name) for name in NAMES]
        first = plan.read_plan(store, everything)
        assert plan.read_plan(store, everything) is first
        everything[0].newer_than = store.get("w").version
        second = plan.read_plan(store, everything)
        assert [each is store.get("b").value for each in second.tensors()] == [True]
        store.get("w").version += 1
        third = plan.read_plan(store, everything)
        w, b = (store.get(name).value for name in "wb")
        assert [*map(is_, third.tensors(), (w, b))] == [True, True]
        assert third.present_header().versions[0] == store.get("w").version


def test_plans_are_told_apart_by_all_but_what_changes_with_each_step() -> None:
    plans = StepPlans(VariableStore())
    first = kept(plans, header())
    assert plans.plan(header(lr=0.7, sequence=9)) is first
    assert plans.plan(header("w")) is not first
    narrow = header()
    narrow.tensors[0].shape[0] = 1
    other = header()
    other.program.optimizer.name = "other"
    grouped = header()
    grouped.gradients[0].group = 1
    read = header()
    read.then.selections.add(variable="w")
    for each in (narrow, other, grouped, read):
        assert plans.plan(each) is not first
    again = header()
    again.then.selections.add(variable="w", newer_than=3)
    assert kept(plans, again) is plans.plan(read)


def test_nothing_is_kept_of_updates_that_were_refused() -> None:
    with training() as one:
        plans = one.server._state.plans
        with (
            RawClient(one.server.address, TOKEN) as stranger,
            pytest.raises(SessionLostError),
        ):
            stranger.update(adam(), one.gradients())
        with pytest.raises(InvalidArgumentError):
            one.client.update(adam(), {"w": torch.ones(7)})
        assert len(plans) == 0


def test_a_plan_keeps_nothing_else_of_the_update() -> None:
    with training() as one:
        one.step(times=3)
        asked = update_header(RequestKey(), adam(), one.gradients())
        plan = one.server._state.plans.plan(asked)
        assert plan is not None
        assert plan.step is not None
        assert not plan.step.program.groups


def with_rows(asked: pb.UpdateHeader) -> None:
    asked.gradients[0].rows = 1


def encoded_gradient(asked: pb.UpdateHeader) -> None:
    asked.gradients[0].encoding.kind = ENCODING_KIND_NARROWED


def with_rows_to_read(asked: pb.UpdateHeader) -> None:
    asked.then.selections.add(variable="w").rows.indices = bytes(8)


def contributed(asked: pb.UpdateHeader) -> None:
    asked.contribution.step.step = 1


def in_parts(asked: pb.UpdateHeader) -> None:
    asked.backward.number = 1


def limited(asked: pb.UpdateHeader) -> None:
    asked.limits.clip_norm = 1.0


@pytest.mark.parametrize(
    "make",
    [
        with_rows,
        encoded_gradient,
        with_rows_to_read,
        contributed,
        in_parts,
        limited,
    ],
)
def test_nothing_is_kept_of_other_updates(
    make: Callable[[pb.UpdateHeader], None],
) -> None:
    plans, asked = StepPlans(VariableStore()), header()
    make(asked)
    assert plans.plan(asked) is None
    assert len(plans) == 0


def test_the_plans_that_were_used_last_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_plans, "MAX_PLANS", 2)
    plans = StepPlans(VariableStore())
    first, second = kept(plans, header("a")), kept(plans, header("b"))
    assert plans.plan(header("a")) is first
    kept(plans, header("c"))
    assert len(plans) == 2
    assert plans.plan(header("a")) is first
    assert plans.plan(header("b")) is not second


def test_plans_take_no_more_than_their_part_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = len(common_part(header("a")).SerializeToString())
    monkeypatch.setattr(step_plans, "MAX_TEXT_BYTES", 2 * one)
    plans = StepPlans(VariableStore())
    for name in "abc":
        kept(plans, header(name))
    assert len(plans) == 2
    assert plans.plan(header(*"abcdef")) is None
    assert len(plans) == 2


def test_plans_are_dropped_once_a_variable_comes_or_goes() -> None:
    store = VariableStore()
    plans = StepPlans(store)
    for change in (
        lambda: store.create([model_spec("w", torch.ones(3))], [torch.ones(3)]),
        lambda: store.put_value("w", torch.zeros(3)),
        lambda: store.delete(["w"]),
    ):
        kept(plans, header())
        assert len(plans) == 1
        change()
        assert len(plans) == 0

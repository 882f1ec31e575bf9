"""Pushes of any rows are planned, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, RowIndexError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.v1.variable_requests_pb2 import (
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
from stratagem_proto.wire.frames import encode_header
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.fast.plans import StepPlans
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.variables.store import VariableStore
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.wire import (
    RawClient,
    encoded,
    optimizer_program,
    update_header,
)

pytestmark = pytest.mark.fast_servers

ROWS, WIDTH = 50, 4
PROGRAM = optimizer_program(torch.optim.Adagrad([torch.zeros(1)], lr=0.1))


def rows_header(key: RequestKey, rows: torch.Tensor, value: torch.Tensor) -> pb.UpdateHeader:
    """A push of rows of "table"."""
    header = update_header(key, PROGRAM, {"table": value})
    header.gradients[0].rows = 1
    header.tensors.append(spec_of(rows))
    return header


class Lookups:
    """A client that pushes rows of a variable."""

    def __init__(self, server: ParameterServer, client: RawClient) -> None:
        self.server, self.client = server, client
        self._generator = torch.Generator().manual_seed(4)
        client.open()
        self.create()

    def create(self) -> None:
        self.client.create(table=torch.ones(ROWS, WIDTH), dense=torch.ones(3))

    def push(self, rows: torch.Tensor) -> pb.UpdateResponse:
        value = torch.randn(len(rows), WIDTH, generator=self._generator)
        header = rows_header(self.client.key(), rows, value)
        messages = encoded(header, [value, rows])
        return self.client.upload("Update", messages, pb.UpdateResponse)

    def push_often(self) -> None:
        for count in (3, 9, ROWS, 1, 0, 7):
            order = torch.randperm(ROWS, generator=self._generator)
            self.push(order[:count].sort().values)

    def delete(self, *names: str) -> None:
        request = DeleteVariablesRequest(key=self.client.key(), names=names)
        self.client.unary("DeleteVariables", request, DeleteVariablesResponse)

    @property
    def is_planned(self) -> bool:
        """Whether the next push would be a repetition."""
        state, rows = self.server._state, torch.tensor([1])
        asked = rows_header(RequestKey(), rows, torch.ones(1, WIDTH))
        plan = state.plans.plan(asked)
        return plan is not None and plan.holds(state.store) and plan.step is not None


@contextmanager
def lookups() -> Iterator[Lookups]:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        yield Lookups(server, client)


def nothing(_: Lookups) -> None:
    pass


def unsorted(one: Lookups) -> None:
    one.push(torch.tensor([7, 3, 5]))


def repeated(one: Lookups) -> None:
    one.push(torch.tensor([3, 7, 3, 3]))


def out_of_range(one: Lookups) -> None:
    with pytest.raises(RowIndexError, match="'table'"):
        one.push(torch.tensor([3, ROWS]))


def assigned(one: Lookups) -> None:
    one.client.assign("table/Adagrad/sum", torch.full((ROWS, WIDTH), 2.0))


def recreated(one: Lookups) -> None:
    one.delete("table", "dense")
    one.create()


def dense(one: Lookups) -> None:
    one.client.update(PROGRAM, {"table": torch.ones(ROWS, WIDTH)})


EVENTS = [nothing, unsorted, repeated, out_of_range, assigned, recreated, dense]


@a_few(
    "event",
    EVENTS,
    "events end a plan by one version of the store",
    3,
    ids=lambda event: event.__name__,
)
def test_pushes_are_the_same_without_plans(
    event: Callable[[Lookups], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(planned: bool) -> Mapping[str, tuple[int, bytes]]:
        with lookups() as one:
            if not planned:
                monkeypatch.setattr(one.server._state.plans, "plan", lambda *_: None)
            one.push_often()
            assert not planned or one.is_planned
            event(one)
            one.push_often()
            return one.client.everything()

    assert outcome(planned=True) == outcome(planned=False)


def test_what_is_said_of_a_push_is_checked_although_there_is_a_plan() -> None:
    with lookups() as one:
        one.push_often()
        before = one.client.everything()
        rows, value = torch.tensor([3, 4]), torch.ones(3, WIDTH)
        header = rows_header(one.client.key(), rows, value)
        messages = encoded(header, [value, rows])
        with pytest.raises(InvalidArgumentError, match="'table'"):
            one.client.upload("Update", messages, pb.UpdateResponse)
        assert one.client.everything() == before


def test_a_push_that_is_sent_again_is_applied_once() -> None:
    with lookups() as one:
        one.push_often()
        rows, value = torch.tensor([3, 4]), torch.ones(2, WIDTH)
        header = rows_header(one.client.key(), rows, value)
        messages = encoded(header, [value, rows])
        replies = [
            one.client.upload("Update", messages, pb.UpdateResponse).SerializeToString()
            for _ in range(2)
        ]
        assert replies[0] == replies[1]
        assert one.client.listing()["table"] == 8


def test_a_snapshot_keeps_its_values_while_pushes_are_repeated() -> None:
    with lookups() as one:
        one.push_often()
        store, snapshots = one.server._state.store, one.server._state.snapshots
        snapshot = snapshots.take(store)
        before = [variable.value.clone() for variable in store.variables()]
        one.push_often()
        assert one.is_planned
        assert all(map(torch.equal, snapshot.taken(), before))
        assert not torch.equal(store.get("table").value, before[0])
        snapshots.close(snapshot)


def test_one_plan_is_kept_for_any_number_of_rows() -> None:
    plans = StepPlans(VariableStore())

    def asked(count: int, width: int = WIDTH) -> pb.UpdateHeader:
        rows, value = torch.arange(count), torch.ones(count, width)
        return rows_header(RequestKey(sequence=count), rows, value)

    plan = plans.plan(asked(3))
    assert plan is not None
    plans.keep(plan)
    for count in (3, 0, 1000):
        assert plans.plan(asked(count)) is plan
        assert plan.manifest(asked(count)).nbytes == count * (8 + 4 * WIDTH)
        # By its text the second time.
        for header in (asked(count), asked(count)):
            text = encode_header(header.SerializeToString())
            known = plans.recognise(header, text)
            assert known is not None
            assert known.plan is plan
            assert known.manifest.nbytes == count * (8 + 4 * WIDTH)
    assert plans.plan(asked(3, width=WIDTH + 1)) is not plan


@pytest.mark.parametrize("place", [0, 7])
def test_tensors_of_planned_pushes_are_there_and_have_one_use_each(place: int) -> None:
    plans = StepPlans(VariableStore())
    header = rows_header(RequestKey(), torch.tensor([1]), torch.ones(1, WIDTH))
    header.gradients[0].rows = place
    assert plans.plan(header) is None

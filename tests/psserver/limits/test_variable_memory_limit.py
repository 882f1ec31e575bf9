"""The limit of what the variables of a server take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram
from stratagem_proto.v1.variable_requests_pb2 import (
    DeleteVariablesRequest,
    DeleteVariablesResponse,
    DescribeVariablesRequest,
    DescribeVariablesResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.process import serving
from tests.psserver.tables.specs import dynamic, table_spec
from tests.psserver.wire import RawClient, encoded, optimizer_program, sgd

LIMIT = 100_000
ADAM = optimizer_program(torch.optim.Adam([torch.empty(0)], lr=0.1))


def test_what_is_taken_and_settled_is_counted_for_each_variable() -> None:
    room = VariableMemoryLimit(100)
    room.take("a", 60)
    room.take("b", 40)
    room.record("a", 30)
    with pytest.raises(ResourceExhaustedError) as caught:
        room.take("b", 31)
    message = str(caught.value)
    assert "'b' takes 40 bytes" in message
    assert "needs 31 more" in message
    assert "take 70 of the 100 bytes of --variable-bytes" in message
    room.take("b", 30)
    room.record("b", 0)
    room.take("c", 70)


def test_without_a_limit_everything_fits() -> None:
    VariableMemoryLimit().take("a", 1 << 60)


@pytest.fixture
def client() -> Iterator[RawClient]:
    settings = ServerSettings(token=TOKEN, variable_bytes=LIMIT)
    with (
        ParameterServer(settings) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        yield client


def refused(variable: str, call: Callable[[], object]) -> None:
    with pytest.raises(ResourceExhaustedError, match="--variable-bytes") as caught:
        call()
    assert caught.value.variable == variable
    assert f"{variable!r} takes" in str(caught.value)


def step(
    client: RawClient,
    program: OptimizerProgram,
    name: str,
    gradient: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> None:
    tensors = [gradient] if rows is None else [gradient, rows]
    reference = pb.GradientRef(variable=name, rows=None if rows is None else 1)
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(optimizer=program),
        gradients=[reference],
        tensors=map(spec_of, tensors),
    )
    client.upload("Update", encoded(header, tensors), pb.UpdateResponse)


def test_variables_that_do_not_fit_are_not_created(client: RawClient) -> None:
    size = LIMIT // 4
    refused("b", lambda: client.create(a=torch.zeros(10), b=torch.zeros(size)))
    assert client.listing() == {}
    client.create(a=torch.zeros(size))


def test_what_is_deleted_makes_room(client: RawClient) -> None:
    size = LIMIT // 4
    client.create(a=torch.zeros(size))
    refused("b", lambda: client.create(b=torch.zeros(1)))
    request = DeleteVariablesRequest(key=client.key(), names=["a"])
    client.unary("DeleteVariables", request, DeleteVariablesResponse)
    client.create(b=torch.zeros(size))


def test_a_step_whose_state_does_not_fit_changes_nothing(client: RawClient) -> None:
    size = LIMIT // 4 // 2
    client.create(a=torch.zeros(size))
    before = client.everything()
    refused("a", lambda: step(client, ADAM, "a", torch.ones(size)))
    rows = torch.arange(1)
    assert client.everything() == before
    step(client, sgd(), "a", torch.ones(size))
    client.create(b=torch.zeros(10, 2))
    step(client, ADAM, "b", torch.ones(1, 2), rows)
    refused("c", lambda: client.create(c=torch.zeros(size)))


@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_a_table_grows_up_to_the_limit(client: RawClient, kind: str) -> None:
    first = 10**9 if kind == "fixed" else 0
    client.create_as([table_spec("t", (first, 10))], [])
    batches, stored = torch.arange(10_000).split(100), 0

    def grow() -> None:
        nonlocal stored
        for batch in batches:
            client.assign("t", torch.ones(100, 10), rows=batch)
            stored += 100

    refused("t", grow)
    info = client.unary(
        "DescribeVariables",
        DescribeVariablesRequest(session_id=client.session_id, names=["t"]),
        DescribeVariablesResponse,
    ).variables[0]
    assert info.table.rows == stored
    assert LIMIT / 2 < info.table.bytes <= LIMIT
    # What is there can be written; and trained, by what needs no state.
    client.assign("t", torch.zeros(100, 10), rows=batches[0])
    step(client, sgd(), "t", torch.ones(100, 10), batches[0])
    refused("t", lambda: step(client, ADAM, "t", torch.ones(100, 10), batches[0]))


def test_a_step_that_a_table_has_no_room_for_changes_no_table(
    client: RawClient,
) -> None:
    client.create_as([table_spec("a", (0, 2)), table_spec("b", (0, 2))], [])
    tensors = [torch.ones(10, 2), torch.arange(10), torch.ones(5000, 2)]
    tensors.append(torch.arange(5000))
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(optimizer=sgd()),
        gradients=[
            pb.GradientRef(variable="a", tensor=0, rows=1),
            pb.GradientRef(variable="b", tensor=2, rows=3),
        ],
        tensors=map(spec_of, tensors),
    )
    frames = encoded(header, tensors)
    refused("b", lambda: client.upload("Update", frames, pb.UpdateResponse))
    assert client.listing() == {"a": 1, "b": 1}
    client.assign("b", torch.ones(10, 2), rows=torch.arange(10))


@pytest.mark.full("limits of tables have tests in tests/psserver/tables")
def test_a_table_with_a_limit_of_its_own_makes_room_itself(client: RawClient) -> None:
    limits = dynamic(max_bytes=LIMIT // 2)
    client.create_as([table_spec("t", (0, 10), table=limits)], [])
    for batch in torch.arange(10_000).split(100):
        client.assign("t", torch.ones(100, 10), rows=batch)


@pytest.mark.full("options are read by one parser, which has tests of its own")
@pytest.mark.unlogged
@a_few(
    "arguments",
    [["--variable-bytes", "1000"], []],
    "all options come from either place by one parser",
)
def test_the_limit_comes_from_the_command_line_or_the_environment(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not arguments:
        monkeypatch.setenv("STRATAGEM_VARIABLE_BYTES", "1000")
    with (
        serving(tmp_path, *arguments) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        refused("v", lambda: client.create(v=torch.zeros(251)))
        client.create(v=torch.zeros(250))

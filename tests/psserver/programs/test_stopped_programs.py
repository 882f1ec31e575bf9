"""Update programs that take long, on servers that stop and for clients that go away."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import torch

from stratagem_proto.errors import DeadlineExceededError, InvalidArgumentError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import GraphProgram, InputBinding, UpdateProgram
from stratagem_proto.wire.status import translated
from stratagem_psserver.programs import graph_run
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.graph_programs import Ref, node, program, written
from tests.psserver.process import serving
from tests.psserver.wire import SERVICE, RawClient, encoded
from tests.waiting import eventually

DRAIN_SECONDS = 1.0


def products(number: int) -> GraphProgram:
    """Adds ones, and multiplies the variable by itself so many times, for nothing."""
    return program(
        [written()],
        node("aten.add_.Scalar", Ref(0), 1),
        *[node("aten.mm.default", Ref(0), Ref(0)) for _ in range(number)],
        node("aten.add_.Scalar", Ref(0), 1),
    )


def messages(client: RawClient, graph: GraphProgram) -> list[bytes]:
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(graph=graph),
        bindings=[InputBinding(variable="w")],
    )
    return encoded(header, [])


def created(client: RawClient, rows: int) -> None:
    client.open()
    client.create(w=torch.zeros(rows, rows))


# About a minute of work, and many minutes where it cannot be stopped.
LONG, LARGE = (products(5_000), 1_000), (products(1), 9_000)


@pytest.mark.cluster
@pytest.mark.parametrize("durability", ["none", "snapshot", "log"])
@pytest.mark.parametrize(("graph", "rows"), [LONG, LARGE], ids=["many operations", "a large one"])
def test_the_end_of_draining_is_the_end_whatever_a_server_computes(
    tmp_path: Path, graph: GraphProgram, rows: int, durability: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    folder = ["--durability-folder", str(state)] if durability != "none" else []
    options = ["--durability", durability, *folder]
    with (
        serving(tmp_path, *options, "--drain-seconds", str(DRAIN_SECONDS)) as server,
        RawClient(server.address, "") as client,
        ThreadPoolExecutor(1) as calling,
    ):
        created(client, rows)
        call = calling.submit(
            client.upload, "Update", messages(client, graph), pb.UpdateResponse, 300.0
        )
        eventually(lambda: busy_seconds(server.pid) > 0.5)
        before = busy_seconds(server.pid)
        eventually(lambda: busy_seconds(server.pid) > before + 0.5)
        asked = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.exit_code() == 0
        assert time.monotonic() - asked < DRAIN_SECONDS + 2
        assert call.exception() is not None
    if durability != "log":
        return
    with serving(tmp_path, *options) as server, RawClient(server.address, "") as client:
        client.open()
        # What was acknowledged is there, and nothing of what was not.
        assert client.read("w")[0].eq(0).all()


def busy_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        yield client


def test_a_program_stops_when_its_client_has_gone_and_leaves_no_trace(
    server: ParameterServer, client: RawClient
) -> None:
    created(client, 600)
    call: grpc.StreamUnaryMultiCallable[bytes, bytes]
    call = client.channel.stream_unary(f"/{SERVICE}/Update")
    long = messages(client, products(2_000))
    with pytest.raises(DeadlineExceededError), translated("the server", "Update"):
        call(iter(long), timeout=0.5)
    (session,) = server._state.ledger.opened()
    eventually(lambda: not session.numbering.is_applying, seconds=10)
    assert client.read("w")[0].eq(0).all()
    # The same number may be sent again, and then counts once.
    client.sequence -= 1
    client.upload("Update", messages(client, products(1)), pb.UpdateResponse)
    assert client.read("w")[0].eq(2).all()


@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (products(1), (20, 20)),
        (program([written()], node("aten.addmm_.default", Ref(0), Ref(0), Ref(0))), (20, 20)),
        (program([written()], node("aten.baddbmm_.default", Ref(0), Ref(0), Ref(0))), (4, 13, 13)),
        (
            program(
                [written()],
                node("aten.select.int", Ref(0), 0, 0),
                node("aten.addr_.default", Ref(0), Ref(1), Ref(1)),
            ),
            (90, 90),
        ),
    ],
)
def test_an_operation_that_takes_too_long_is_refused_before_it_runs(
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    graph: GraphProgram,
    shape: tuple[int, ...],
) -> None:
    monkeypatch.setattr(graph_run, "MAX_PRODUCTS", 7_999)
    client.open()
    client.create(w=torch.zeros(shape))
    with pytest.raises(InvalidArgumentError, match="one operation may take 7999"):
        client.upload("Update", messages(client, graph), pb.UpdateResponse)
    assert client.read("w")[0].eq(0).all()


def test_vectors_take_as_many_multiplications_as_they_have_elements(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_run, "MAX_PRODUCTS", 400)
    client.open()
    client.create(w=torch.ones(20, 20))
    graph = program(
        [written()],
        node("aten.select.int", Ref(0), 0, 0),
        node("aten.mv.default", Ref(0), Ref(1)),
        node("aten.dot.default", Ref(1), Ref(2)),
        node("aten.addmv.default", Ref(1), Ref(0), Ref(2)),
        node("aten.add_.Tensor", Ref(0), Ref(4)),
    )
    client.upload("Update", messages(client, graph), pb.UpdateResponse)
    assert client.read("w")[0].eq(402).all()

"""A running server, spoken to by frames written by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch
from grpc_reflection.v1alpha import reflection_pb2

from stratagem_proto.errors import (
    InvalidArgumentError,
    ProtocolVersionError,
    SessionLostError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.parameter_server_service_pb2 import DESCRIPTOR as SERVICE_FILE
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
    DescribeVariablesRequest,
    DescribeVariablesResponse,
)
from stratagem_psserver.log.changes import Changes
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.service import Methods
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import open_channel
from stratagem_rpc.serving.figures import Figures
from stratagem_rpc.serving.handshake import Handshakes
from stratagem_rpc.serving.rpc_boundary import RpcBoundary, handler_of
from tests.conftest import TOKEN
from tests.probes import SERVING, health_at
from tests.psserver.wire import (
    LARGE,
    SECONDS,
    SERVICE,
    RawClient,
    optimizer_program,
    sgd,
)
from tests.waiting import eventually

# --- What it is for ----------------------------------------------------------


def test_the_handshake_tells_the_clients_terms(server: ParameterServer) -> None:
    with RawClient(server.address, TOKEN) as client:
        response = client.open()
    assert response.protocol_version == PROTOCOL_VERSION
    assert response.task == session_pb2.Task(job="ps", index=0)
    assert response.lease_seconds == server.settings.lease_seconds
    assert len(response.incarnation) == 16


@pytest.mark.parametrize("run", [b"", bytes(16)])
def test_a_handshake_opens_no_session_unless_it_names_the_run_of_the_server(
    server: ParameterServer, run: bytes
) -> None:
    with RawClient(server.address, TOKEN) as client:
        # It may have been sent to the run before, and arrive again.
        answer = client.shake_hands(run)
        with pytest.raises(SessionLostError):
            client.heartbeat()
        assert client.shake_hands(answer.incarnation).last_sequence == 0
        client.heartbeat()


def test_variables_are_created_read_and_deleted(client: RawClient) -> None:
    values = {"a": torch.randn(3, 5), "b": torch.randn(LARGE), "c": torch.tensor(7)}
    client.create(**values)
    for value, read in zip(values.values(), client.read(*values), strict=True):
        assert torch.equal(value, read)
    request = DeleteVariablesRequest(key=client.key(), names=["a"])
    deleted = client.unary("DeleteVariables", request, DeleteVariablesResponse)
    assert deleted.names == ["a"]
    assert "a" not in client.listing()


def test_variables_are_described_by_name(client: RawClient) -> None:
    request = DescribeVariablesRequest(session_id=client.session_id, names=["big", "dense.weight"])
    response = client.unary("DescribeVariables", request, DescribeVariablesResponse)
    assert [info.spec.tensor.shape for info in response.variables] == [[LARGE], [2, 3]]
    assert [info.version for info in response.variables] == [1, 1]


def test_only_newer_versions_and_parts_are_sent(client: RawClient) -> None:
    selections = [
        pb.Selection(variable="big", newer_than=1),
        pb.Selection(variable="big", newer_than=0, slice=pb.Slice(start=[3], size=[2])),
        pb.Selection(variable="dense.weight", rows=pb.Rows(indices=bytes(8))),
    ]
    header, tensors = client.select(pb.ReadRequest(selections=selections))
    values = pb.ReadContents.FromString(header.contents).values
    assert [value.HasField("tensor") for value in values] == [False, True, True]
    assert [list(tensor.shape) for tensor in tensors] == [[2], [1, 3]]


@pytest.mark.parametrize("name", ["dense.weight", "big"])
def test_assignments_and_steps_change_values_and_versions(client: RawClient, name: str) -> None:
    (ones,) = client.read(name)
    assert client.assign(name, ones, ASSIGN_MODE_ADD).versions == [2]
    assert client.update(sgd(lr=0.5), {name: ones}).versions == [3]
    assert torch.equal(client.read(name)[0], 1.5 * ones)


def test_optimizer_state_is_read_and_restored_as_slot_variables(
    client: RawClient,
) -> None:
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    gradients = {"dense.weight": torch.ones(2, 3)}
    client.update(adam, gradients)
    saved = client.read("dense.weight", "dense.weight/Adam/exp_avg")
    client.update(adam, gradients)
    after = client.everything()
    for name, value in zip(["dense.weight", "dense.weight/Adam/exp_avg"], saved, strict=True):
        client.assign(name, value)
    client.assign("dense.weight/Adam/step", torch.tensor(1.0))
    (squares,) = client.read("dense.weight/Adam/exp_avg_sq")
    client.assign("dense.weight/Adam/exp_avg_sq", squares - squares + 0.001)
    client.update(adam, gradients)
    again = client.everything()
    assert again["dense.weight/Adam/step"][1] == after["dense.weight/Adam/step"][1]
    assert again["dense.weight/Adam/exp_avg"][1] == after["dense.weight/Adam/exp_avg"][1]


def test_a_read_sees_all_of_a_request_or_nothing(client: RawClient) -> None:
    names = ["big", "dense.weight"]
    values = client.read(*names)
    with RawClient(client.address, TOKEN) as writer, ThreadPoolExecutor(1) as threads:
        writer.open()

        def write() -> None:
            for _ in range(50):
                writer.update(sgd(), dict(zip(names, values, strict=True)))

        writing = threads.submit(write)
        while not writing.done():
            big, weight = client.read(*names)
            assert big.unique().tolist() == weight.unique().tolist()
        writing.result()


# --- Who may speak -----------------------------------------------------------


def test_no_server_has_a_token_that_could_be_guessed() -> None:
    with pytest.raises(InvalidArgumentError, match=r"has 5 bytes.*make another by 'openssl rand"):
        ServerSettings(token="short")


@pytest.mark.parametrize("token", ["", "another secret"])
def test_a_wrong_token_is_refused_with_where_to_look(server: ParameterServer, token: str) -> None:
    with (
        RawClient(server.address, token) as client,
        pytest.raises(UnauthenticatedError, match="STRATAGEM_TOKEN_FILE"),
    ):
        client.open()


def test_a_session_id_of_another_length_is_refused(server: ParameterServer) -> None:
    with (
        RawClient(server.address, TOKEN) as client,
        pytest.raises(InvalidArgumentError, match="a session id has 16 bytes; this one has 5"),
    ):
        client.session_id = b"short"
        client.open()


def test_another_protocol_version_is_refused_by_naming_both(
    server: ParameterServer,
) -> None:
    other = PROTOCOL_VERSION + 1
    with (
        RawClient(server.address, TOKEN) as client,
        pytest.raises(ProtocolVersionError, match=f"{other}.*{PROTOCOL_VERSION}"),
    ):
        client.open(version=other)


def test_a_client_of_a_later_release_is_served_in_a_version_that_both_know(
    server: ParameterServer,
) -> None:
    versions = PROTOCOL_VERSION + 1, PROTOCOL_VERSION
    with RawClient(server.address, TOKEN) as client:
        told = client.shake_hands(client.shake_hands(b"", *versions).incarnation, *versions)
        assert told.oldest_protocol_version <= PROTOCOL_VERSION == told.protocol_version
        client.heartbeat()


SMALL = torch.zeros(2, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create(w=SMALL),
        lambda client: client.assign("w", SMALL),
        lambda client: client.update(sgd(), {"w": SMALL}),
        lambda client: client.read("w"),
        lambda client: client.listing(),
    ],
)
def test_nothing_is_done_without_a_session(
    server: ParameterServer, call: Callable[[RawClient], object]
) -> None:
    with (
        RawClient(server.address, TOKEN) as client,
        pytest.raises(SessionLostError, match="open a session"),
    ):
        call(client)


def test_a_closed_session_is_lost(client: RawClient) -> None:
    request = session_pb2.CloseSessionRequest(session_id=client.session_id)
    client.unary("CloseSession", request, session_pb2.CloseSessionResponse)
    with pytest.raises(SessionLostError, match="open it again"):
        client.listing()


# --- Health and reflection ---------------------------------------------------


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_served_on_a_port_of_its_own(server: ParameterServer, service: str) -> None:
    assert health_at(server.health_address, service) == SERVING
    assert server.health_address != server.address


def test_reflection_names_the_service(server: ParameterServer) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with open_channel(server.health_address) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        (response,) = ask(iter([request]), timeout=10)
    assert SERVICE in {each.name for each in response.list_services_response.service}


def test_nothing_of_a_failure_inside_leaves_the_server() -> None:
    async def failing(request: session_pb2.HeartbeatRequest) -> session_pb2.HeartbeatResponse:
        raise RuntimeError("/home/somebody/secret")

    async def call() -> grpc.aio.AioRpcError:
        server = grpc.aio.server()
        boundary = RpcBoundary(Handshakes(ServerSettings()), Figures())
        fail = Methods(Changes()).unary(session_pb2.HeartbeatRequest, failing)
        service = SERVICE_FILE.services_by_name["ParameterServerService"]
        handler = handler_of(boundary, service, {"Heartbeat": fail})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            method = channel.unary_unary(f"/{SERVICE}/Heartbeat")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"", timeout=SECONDS)
        await server.stop(None)
        return caught.value

    error = asyncio.run(call())
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "RuntimeError; its log has the traceback" in str(error.details())
    assert "secret" not in f"{error.details()}{error.trailing_metadata()}"


def test_every_method_of_the_contract_is_served(client: RawClient) -> None:
    for method in SERVICE_FILE.services_by_name["ParameterServerService"].methods:
        call: grpc.StreamStreamMultiCallable[bytes, bytes]
        call = client.channel.stream_stream(f"/{SERVICE}/{method.name}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b"\xff"]), timeout=10))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- Life --------------------------------------------------------------------


def test_two_servers_share_a_process_and_end_without_leaving_threads() -> None:
    before = set(threading.enumerate())
    with (
        ParameterServer(ServerSettings(task=0)) as first,
        ParameterServer(ServerSettings(task=1)) as second,
    ):
        for index, server in enumerate((first, second)):
            with RawClient(server.address, "") as client:
                assert client.open().task.index == index

    def left() -> set[str]:
        # gRPC keeps its own poller for the life of the process.
        names = {thread.name for thread in set(threading.enumerate()) - before}
        return {name for name in names if "_poll_wrapper" not in name}

    # The event loop does not wait for its idle threads, which it has told to end.
    eventually(lambda: not left())


def test_a_server_that_has_stopped_can_be_stopped_and_joined_again() -> None:
    server = ParameterServer(ServerSettings())
    server.start()
    server.stop()
    server.stop()
    server.join()


def test_a_port_that_is_taken_is_named(server: ParameterServer) -> None:
    second = ParameterServer(ServerSettings(bind=server.address))
    with pytest.raises(UnavailableError, match=server.address):
        second.start()


@pytest.mark.parametrize(
    ("bind", "insecure", "token", "says"),
    [
        ("0.0.0.0:0", False, TOKEN, "--insecure"),
        ("[::]:0", False, TOKEN, "--insecure"),
        ("0.0.0.0:0", True, "", "--token-file"),
    ],
)
def test_an_exposed_server_must_be_wanted_and_have_a_token(
    bind: str, insecure: bool, token: str, says: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        ServerSettings(bind=bind, insecure=insecure, token=token)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_loopback_needs_neither(bind: str) -> None:
    assert ServerSettings(bind=bind).bind == bind

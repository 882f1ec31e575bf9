"""Tensors in memory that a client and a server of one host share."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.reads import Reading, read
from stratagem_deploy.processes.process import import_path
from stratagem_proto.programs.optimizers import OPTIMIZERS
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD, AssignHeader, Assignment
from stratagem_proto.wire import segment
from stratagem_proto.wire.frames import ChunkView, Frame, encode_frame
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import AUTO, GRPC, TCP, UNIX
from stratagem_rpc.sockets.client import Endpoint, SocketLink, endpoints
from stratagem_rpc.sockets.frames import FrameKind, prefix
from tests.client.connections import add, connected, make, value_of
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.wire import optimizer_program
from tests.waiting import eventually

LARGE = 50_000  # elements of 4 bytes; more than what is sent


@contextmanager
def served(**settings: object) -> Iterator[tuple[ParameterServer, Connection]]:
    made = ServerSettings(token=TOKEN, **settings)  # type: ignore[arg-type]
    with ParameterServer(made) as server, connected(server.address) as connection:
        yield server, connection


def shared_bytes(server: ParameterServer) -> int:
    return server._state.shared.used


def place_of(connection: Connection) -> Endpoint:
    """The Unix socket of the server that a connection goes to."""
    connection.open()
    told = connection.route.transport._offer
    return next(endpoints(told, connection.route.address, UNIX))


@a_few("transport", [AUTO, UNIX, TCP, GRPC], "each transport has tests of its own", 2)
def test_the_same_bytes_arrive_over_every_transport(transport: str) -> None:
    generator = torch.Generator().manual_seed(1)
    values = {
        "large": torch.randn(LARGE, generator=generator),
        "in_runs": torch.randn(700_001, generator=generator),
        "in_long_runs": torch.randn(6_000_003, generator=generator),
        "transposed": torch.randn(300, 200, generator=generator).T,
        "half": torch.randn(LARGE, generator=generator).bfloat16(),
        "whole": torch.randint(-9, 9, (LARGE,), generator=generator),
        "complex": torch.randn(LARGE, generator=generator).to(torch.complex64).conj(),
        "small": torch.randn(3, generator=generator),
        "empty": torch.randn(0, 5),
    }
    with served(transport=transport) as (server, connection):
        for name, value in values.items():
            make(connection, name, torch.zeros_like(value))
            add(connection, name, value)
            assert torch.equal(value_of(connection, name, value), value)
        into = [torch.full_like(value, -1) for value in values.values()]
        connection.call(read(list(map(Reading, values, into))))
        assert all(map(torch.equal, into, values.values()))
        assert (shared_bytes(server) > 0) is (transport == AUTO)


@a_few("transport", [AUTO, UNIX, TCP, GRPC], "each transport has tests of its own", 2)
def test_steps_come_to_the_same_bytes_over_every_transport(transport: str) -> None:
    generator = torch.Generator().manual_seed(1)
    with served(transport=transport) as (_, connection):
        for size in (7, 700_001, 1_100_001):
            name, here = f"v{size}", torch.randn(size, generator=generator)
            make(connection, name, here)
            adam = torch.optim.Adam([here], lr=0.1)
            for _ in range(3):
                here.grad = torch.randn(size, generator=generator)
                adam.step()
                step = updates.step(
                    optimizer_program(adam), [updates.SentGradient(name, here.grad, 0)]
                )
                connection.call(step)
            assert torch.equal(value_of(connection, name, here), here)


def test_a_client_that_goes_away_while_it_reads_holds_nothing() -> None:
    with served() as (_, connection):
        value = torch.zeros(400 * LARGE)
        make(connection, "v", value)
        request = pb.ReadRequest(
            session_id=connection.open().credential,
            selections=[pb.Selection(variable="v")],
            into_segment=True,
        )
        link = SocketLink(place_of(connection))
        assert link.share(value.nbytes)
        link.send(
            FrameKind.CALL,
            request.SerializeToString(),
            True,
            b"/stratagem_proto.v1.ParameterServerService/Read",
        )
        assert not next(link.frames()).is_last
        link.close()
        assert add(connection, "v", torch.ones_like(value)) == 2


def test_what_went_through_shared_memory_counts_as_traffic() -> None:
    with served() as (_, connection):
        make(connection, "v", torch.zeros(LARGE))
        before = connection.route.meter.total
        add(connection, "v", torch.ones(LARGE))
        value_of(connection, "v", torch.ones(LARGE))
        moved = connection.route.meter.total - before
        assert 4 * LARGE <= moved.sent_bytes < 4 * LARGE + 1000
        assert 4 * LARGE <= moved.received_bytes < 4 * LARGE + 1000


def test_a_server_without_room_for_it_is_sent_the_bytes() -> None:
    with served(staged_bytes=6 * LARGE) as (server, connection):
        make(connection, "v", torch.zeros(LARGE))
        add(connection, "v", torch.ones(LARGE))
        assert value_of(connection, "v", torch.ones(LARGE)).eq(1).all()
        assert shared_bytes(server) == 0


def test_a_system_without_memory_for_it_has_the_bytes_sent() -> None:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with served() as (server, connection):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, unlimited[1]))
        try:
            make(connection, "v", torch.zeros(LARGE))
            assert value_of(connection, "v", torch.ones(LARGE)).eq(0).all()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert shared_bytes(server) == 0


@pytest.mark.unlogged
def test_a_segment_that_cannot_grow_is_given_back_like_any_other() -> None:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with served() as (server, connection):
        make(connection, "v", torch.zeros(LARGE))
        shared = shared_bytes(server)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, unlimited[1]))
        try:
            make(connection, "w", torch.ones(20 * LARGE))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert shared_bytes(server) == shared
        assert add(connection, "v", torch.ones(LARGE)) == 2
        assert shared_bytes(server) == shared
        for _ in range(2):
            connection.route.trim()
        eventually(lambda: shared_bytes(server) == 0)
        assert value_of(connection, "w", torch.empty(20 * LARGE)).eq(1).all()


def test_memory_that_is_not_used_is_given_back() -> None:
    with served() as (server, connection):
        make(connection, "v", torch.zeros(LARGE))
        assert shared_bytes(server) > 0
        connection.route.trim()
        add(connection, "v", torch.ones(LARGE))
        connection.route.trim()
        # Which happens at the end of steps, too.
        connection.renew_lease()
        assert shared_bytes(server) > 0
        connection.route.trim()
        eventually(lambda: shared_bytes(server) == 0)
        assert add(connection, "v", torch.ones(LARGE)) == 3


def test_a_larger_tensor_gets_a_larger_segment_in_place_of_the_former() -> None:
    with served() as (server, connection):
        for count in (LARGE, 20 * LARGE):
            make(connection, str(count), torch.zeros(count))
        assert 80 * LARGE <= shared_bytes(server) < 100 * LARGE


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_keeps_what_it_was_lent(name: str) -> None:
    """The second gradient comes in the memory of the first."""
    if name == "SparseAdam":
        pytest.skip("steps row-sparse gradients only")
    parameter = torch.nn.Parameter(torch.ones(LARGE).reshape(-1, 50))
    optimizer = OPTIMIZERS[name].cls([parameter], lr=0.1)  # type: ignore[call-arg]
    if name in ("SGD", "RMSprop"):
        optimizer.param_groups[0]["momentum"] = 0.9
    program = optimizer_program(optimizer)
    with served() as (server, connection):
        make(connection, "v", parameter.detach())
        for factor in (1.0, -3.0):
            gradient = torch.arange(1.0, LARGE + 1).reshape(-1, 50) * factor
            pushed = updates.SentGradient("v", gradient, group=0)
            connection.call(updates.step(program, [pushed]))
            parameter.grad = gradient
            optimizer.step()
        assert shared_bytes(server) > 0
        assert torch.equal(value_of(connection, "v", parameter), parameter.detach())


def test_what_a_server_keeps_is_a_copy() -> None:
    """The gradients of a backward pass, and initial values, outlast their request."""
    sgd = optimizer_program(torch.optim.SGD([torch.empty(0)], lr=1.0))
    backward = BackwardPass(optimizer="SGD", number=1)
    with served() as (_, connection):
        make(connection, "v", torch.full([LARGE], 7.0))
        make(connection, "w", torch.zeros(LARGE))
        kept = updates.SentGradient("v", torch.ones(LARGE), group=0)
        connection.call(updates.keep(backward, [kept]))
        other = updates.SentGradient("w", torch.full([LARGE], 5.0), group=0)
        connection.call(updates.step(sgd, [other], backward=backward))
        assert value_of(connection, "v", torch.ones(LARGE)).eq(6).all()
        assert value_of(connection, "w", torch.ones(LARGE)).eq(-5).all()


def unsealed(nbytes: int) -> int:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, nbytes)
    return fd


def of_a_disk(nbytes: int) -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(nbytes)
        return os.dup(file.fileno())


def read_only(nbytes: int) -> int:
    _, fd = segment.create(nbytes)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def beyond_the_budget(nbytes: int) -> int:
    return segment.create(1000 * nbytes)[1]


BAD_SEGMENTS: dict[str, tuple[Callable[[int], int], str]] = {
    "unsealed": (unsealed, "sealed against shrinking"),
    "of a disk": (of_a_disk, "sealed against shrinking"),
    "read-only": (read_only, "cannot be mapped"),
    "too large": (beyond_the_budget, "budget of"),
}


@pytest.mark.parametrize("kind", BAD_SEGMENTS)
def test_a_segment_that_could_harm_the_server_is_refused(kind: str) -> None:
    make_segment, message = BAD_SEGMENTS[kind]
    with served(staged_bytes=4_000_000) as (server, connection):
        link = SocketLink(place_of(connection))
        fd = make_segment(4096)
        socket.send_fds(link._socket, [prefix(FrameKind.SEGMENT, 0, True)], [fd])
        os.close(fd)
        answer = next(link.frames())
        assert message in RecordedStatus.FromString(bytes(answer.message)).message
        assert shared_bytes(server) == 0
        # The same socket serves on.
        assert link.share(4096)
        link.close()
        make(connection, "v", torch.ones(LARGE))
        assert value_of(connection, "v", torch.ones(LARGE)).eq(1).all()


def test_a_frame_about_a_segment_that_did_not_come_is_refused() -> None:
    with served() as (_, connection):
        link = SocketLink(place_of(connection))
        link.send(FrameKind.SEGMENT, b"", True)
        answer = next(link.frames())
        status = RecordedStatus.FromString(bytes(answer.message))
        assert "no descriptor arrived" in status.message
        link.close()


@pytest.mark.parametrize(
    ("start", "nbytes", "shares", "message"),
    [
        (0, 1 << 20, True, "1048576 of a segment were named"),
        (1 << 62, 4 * LARGE, True, "of a segment were named"),
        (4, 4 * LARGE, True, "multiples of 64"),
        (0, 4 * LARGE - 4, True, "after 199996 of 200000 bytes"),
        (0, 4 * LARGE, False, "its call has none"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(
    start: int, nbytes: int, shares: bool, message: str
) -> None:
    value = torch.ones(LARGE)
    with served() as (_, connection):
        make(connection, "v", value)
        key = connection.open().next_key(connection._steps)
        header = AssignHeader(
            key=key,
            assignments=[Assignment(variable="v", mode=ASSIGN_MODE_ADD)],
            tensors=[spec_of(value)],
        )
        link = SocketLink(place_of(connection))
        assert not shares or link.share(4 * LARGE + 64)
        named = ChunkView(0, 0, memoryview(bytes(nbytes)), start)
        frame = encode_frame(Frame(header, [named]))
        link.send(
            FrameKind.CALL,
            frame,
            True,
            b"/stratagem_proto.v1.ParameterServerService/Assign",
        )
        answer = next(link.frames())
        assert answer.kind == FrameKind.STATUS
        assert message in RecordedStatus.FromString(bytes(answer.message)).message
        link.close()
        assert value_of(connection, "v", value).eq(1).all()


@pytest.mark.cluster
def test_a_client_that_is_killed_leaves_nothing(server: ParameterServer) -> None:
    before = len(os.listdir("/proc/self/fd"))
    program = f"""
import torch
from tests.client.connections import connected, make
with connected({server.address!r}) as connection:
    make(connection, "v", torch.zeros({LARGE}))
    print("made", flush=True)
    import time; time.sleep(600)
"""
    paths = os.environ | import_path()
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=paths)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"made\n"
        assert shared_bytes(server) > 0
        child.kill()
    eventually(lambda: shared_bytes(server) == 0)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)

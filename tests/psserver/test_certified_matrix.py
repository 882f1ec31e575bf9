"""Every RPC of a server by itself, called with all kinds of certificates, over each transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from stratagem_deploy.certificates import authority as authorities
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_WORKER,
    FilteredTask,
    FilteredTasks,
    FrameSockets,
    Role,
    Task,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates import folder
from stratagem_rpc.certificates.folder import shown_certificate
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import GRPC, TCP, UNIX
from stratagem_rpc.serving.access import Access, first_message, handshake_finder
from tests.certified import Certified, certified, serial
from tests.full import by_values
from tests.roles import BESIDES, answer, begin, handshake, request_of, services

pytestmark = pytest.mark.unlogged

_UNREACHED = grpc.StatusCode.UNAVAILABLE
_UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
_DENIED = grpc.StatusCode.PERMISSION_DENIED
_NO_SESSION = grpc.StatusCode.FAILED_PRECONDITION

CHIEF, WORKER, HIDDEN = (
    ("worker:0=chief", ROLE_CHIEF, Task(job="worker")),
    ("worker:1", ROLE_WORKER, Task(job="worker", index=1)),
    ("worker:2", ROLE_WORKER, Task(job="worker", index=2)),
)


class Caller(NamedTuple):
    """Who calls.

    Attributes:
        shown: The folder of its certificates.
        role: The role that it says to have.
        task: The task that it says to be.
    """

    shown: Path
    role: Role
    task: Task


class Place(NamedTuple):
    """A server, and the authority of its cluster."""

    server: ParameterServer
    authority: Certified


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    authority = certified(tmp_path_factory.mktemp("prod"))
    with ParameterServer(ServerSettings(tls=authority.of("ps:0"))) as server:
        hidden = FilteredTask(task=HIDDEN[2], device_filters=["/job:ps/task:1"])
        server._state.cluster.learn(FilteredTasks(tasks=[hidden]), 0)
        yield Place(server, authority)


def of_another_authority(authority: Certified) -> Caller:
    foreign = certified(authority.folder.parent / f"{authority.folder.name}-foreign")
    shown = foreign.of(CHIEF[0])
    # It trusts the server.
    with (shown / "ca.crt").open("ab") as trusted:
        trusted.write((authority.of("ps:1") / "ca.crt").read_bytes())
    return Caller(shown, *CHIEF[1:])


def expired(authority: Certified) -> Caller:
    return Caller(authority.of(CHIEF[0], days=-1 / 24 / 60), *CHIEF[1:])


def not_yet_valid(authority: Certified) -> Caller:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(authorities, "_BACKDATED", -timedelta(days=1))
        return Caller(authority.of(CHIEF[0], days=2), *CHIEF[1:])


def denied(authority: Certified) -> Caller:
    caller = Caller(authority.of(CHIEF[0]), *CHIEF[1:])
    (authority.folder / "ps-0" / "denied.txt").write_text(f"{serial(caller.shown):x}\n")
    return caller


def of_a_wrong_role(authority: Certified) -> Caller:
    return Caller(authority.of(WORKER[0]), ROLE_CHIEF, WORKER[2])


def of_a_wrong_task(authority: Certified) -> Caller:
    return Caller(authority.of(WORKER[0]), ROLE_WORKER, Task(job="worker", index=5))


def filtered(authority: Certified) -> Caller:
    return Caller(authority.of(HIDDEN[0]), *HIDDEN[1:])


def right_worker(authority: Certified) -> Caller:
    return Caller(authority.of(WORKER[0]), *WORKER[1:])


def right_chief(authority: Certified) -> Caller:
    return Caller(authority.of(CHIEF[0]), *CHIEF[1:])


Kind = Callable[[Certified], Caller]

REFUSED: Mapping[Kind, set[grpc.StatusCode]] = {
    of_another_authority: {_UNREACHED},
    expired: {_UNREACHED},
    not_yet_valid: {_UNREACHED},
    denied: {_UNREACHED, _UNKNOWN},
    of_a_wrong_role: {_DENIED},
    of_a_wrong_task: {_DENIED},
}


def methods() -> list[MethodDescriptor]:
    found = (one for each in services() if each.name not in BESIDES for one in each.methods)
    return [method for method in found if not Access(method).for_anyone]


@contextmanager
def careless() -> Iterator[None]:
    """A process that does not look at the dates of its own certificate."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folder, "_require_valid", lambda *_: None)
        yield


def asked(place: Place, caller: Caller, method: MethodDescriptor, way: str) -> grpc.StatusCode:
    """The status of the shortest request, in a session of the caller that is open already."""
    state, said = place.server._state, handshake(caller.role)
    said.task.CopyFrom(caller.task)
    said.incarnation = state.incarnation
    begin(place.server, said)
    offered = state.frame_sockets
    shown = shown_certificate((caller.shown / "tls.crt").read_bytes())
    told = offered.to(said.session_id, shown) if offered else FrameSockets()
    try:
        with careless(), presenting(caller.shown):
            request = request_of(method, said, "", token="")
            return answer(way, place.server.address, told, method, request)
    except OSError:
        return _UNREACHED


@by_values("kind,way", [*REFUSED], [GRPC, TCP])
def test_who_is_not_what_he_says_is_refused_whatever_he_calls(
    place: Place, kind: Kind, way: str
) -> None:
    with ExitStack() as stack:
        caller = kind(place.authority)
        stack.callback((place.authority.folder / "ps-0" / "denied.txt").unlink, missing_ok=True)
        found = {one.name: asked(place, caller, one, way) for one in methods()}
    assert {name: status for name, status in found.items() if status not in REFUSED[kind]} == {}


@pytest.mark.parametrize("way", [GRPC, TCP, UNIX])
@pytest.mark.parametrize("kind", [right_worker, right_chief])
def test_who_is_what_he_says_may_do_what_his_role_may(place: Place, kind: Kind, way: str) -> None:
    caller, wrong = kind(place.authority), {}
    for method in methods():
        if method.name == "AttendSession":
            continue
        status = asked(place, caller, method, way)
        refused = status in (_DENIED, _UNKNOWN, _UNREACHED)
        # Who opens a session over a socket is asked to do it by gRPC, where certificates count.
        by_socket = way != GRPC and handshake_finder(first_message(method)) is not None
        if refused is (caller.role in Access(method).roles) and not by_socket:
            wrong[method.name] = status
    assert wrong == {}


@pytest.mark.parametrize("way", [GRPC, TCP])
def test_a_task_from_which_the_server_is_hidden_opens_no_session(place: Place, way: str) -> None:
    (opening,) = [method for method in methods() if method.name == "OpenSession"]
    assert asked(place, filtered(place.authority), opening, way) is _DENIED

"""What the policy of a server keeps from its callers, whichever way they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import grpc
import pytest
import torch
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto.errors import PermissionDeniedError, VariableNotFoundError
from stratagem_proto.v1 import checkpoint_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_WORKER,
    FrameSockets,
    OpenSessionRequest,
    Task,
)
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    Assignment,
    AssignResponse,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.access import Access, Need, handshake_finder
from stratagem_rpc.serving.access import first_message as first_of
from stratagem_rpc.serving.policy import parse_policy
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.wire import RawClient, encoded, optimizer_program, sgd, slot_spec, update_header
from tests.roles import WAYS, answer, begin, handshake, request_of, services
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

DENIED = grpc.StatusCode.PERMISSION_DENIED
SNAPSHOTS = "stratagem_proto.v1.CheckpointService"
HIDDEN = "some/1 may read shown"
FREE = "some/1 may everything"
OTHERS = "other/1 may read shown"

Servers = Mapping[str, Mapping[str, ParameterServer]]


class Ruled(NamedTuple):
    """One thing that an RPC does, to the variable in one of its fields."""

    method: MethodDescriptor
    need: Need
    path: Sequence[str]

    def __str__(self) -> str:
        return f"{self.method.name} {self.need.action} {'.'.join(self.path)}"


RULED = [
    Ruled(method, need, path)
    for service in services()
    for method in service.methods
    for need in Access(method).needs
    for path in need.variables or ((),)
    # Its variables are those of a version; see tests/versions. Lookups are for reader servers; see
    # tests/reader.
    if method.name not in {"ReadVersion", "Lookup"}
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers that have each of the services, by their policies and the names of the services."""
    with ExitStack() as stack:
        found = {}
        for line in (HIDDEN, FREE, OTHERS):
            arbiter = f"file:{tmp_path_factory.mktemp('arbiter') / 'register'}"
            plain, movable = (
                stack.enter_context(
                    ParameterServer(
                        ServerSettings(
                            token=TOKEN, arbiter=each, policy=parse_policy(line, "rules")
                        )
                    )
                )
                for each in ("", arbiter)
            )
            eventually(lambda server=movable: server.replicated.is_serving)  # type: ignore[misc]
            names = {each.name: plain for each in services()}
            found[line] = {**names, "ServersService": movable}
        yield found


def put(message: Any, path: Sequence[str], name: str) -> None:
    """Gives a field of a message a variable, or anything."""
    value = getattr(message, path[0])
    if path[1:]:
        put(value.add() if hasattr(value, "add") else value, path[1:], name)
    elif hasattr(value, "add"):
        given = value.add()
        if "name" in given.DESCRIPTOR.fields_by_name:
            given.name = name
    elif isinstance(value, str):
        setattr(message, path[0], name)
    else:
        value.append(name)


def status_of(
    server: ParameterServer, way: str, ruled: Ruled, caller: OpenSessionRequest
) -> grpc.StatusCode:
    """The status of a call that does one thing, to a variable that no rule is about."""
    method, need, path = ruled
    if handshake_finder(first_of(method)) is None:
        begin(server, caller)
    offered = server._state.frame_sockets
    told = offered.to(caller.session_id) if offered else FrameSockets()
    request: Any = GetMessageClass(method.input_type).FromString(
        request_of(method, caller, server.address)
    )
    first = request.header if "header" in request.DESCRIPTOR.fields_by_name else request
    # A path to a variable leads through what is given with it.
    for each in filter(None, (path or need.given,)):
        put(first, each, "hidden")
    return answer(way, server.address, told, method, request.SerializeToString())


@a_few("way", WAYS, "test_roles.py asks by each way")
@pytest.mark.parametrize("ruled", RULED, ids=str)
def test_a_call_is_refused_for_what_no_rule_for_its_task_allows(
    servers: Servers, way: str, ruled: Ruled
) -> None:
    service = ruled.method.containing_service.name
    assert status_of(servers[HIDDEN][service], way, ruled, handshake(ROLE_CHIEF)) is DENIED
    for line in (FREE, OTHERS):
        answered = status_of(servers[line][service], way, ruled, handshake(ROLE_CHIEF))
        assert answered is not DENIED, line


def test_calls_that_touch_no_values_are_left_to_roles(servers: Servers) -> None:
    server = servers[HIDDEN]["ParameterServerService"]
    with RawClient(server.address, TOKEN, Task(job="some", index=1)) as client:
        client.open()
        client.heartbeat()
        assert client.listing() == {}


@contextmanager
def worker_under(*lines: str) -> Iterator[tuple[RawClient, RawClient]]:
    """The chief, who has made `emb/a`, `emb/b` and `dense`, and a worker under a policy."""
    policy = parse_policy("\n".join(lines), "/etc/stratagem/policy")
    with ExitStack() as stack:
        server = stack.enter_context(ParameterServer(ServerSettings(token=TOKEN, policy=policy)))
        chief = stack.enter_context(RawClient(server.address, TOKEN, Task(job="chief")))
        worker = stack.enter_context(
            RawClient(server.address, TOKEN, Task(job="worker", index=1), ROLE_WORKER)
        )
        chief.open()
        chief.create(**{name: torch.ones(2) for name in ("emb/a", "emb/b", "dense")})
        worker.open()
        yield chief, worker


def test_an_error_names_the_rule_the_task_and_the_variable() -> None:
    with worker_under("# rules", "worker/* may read, update emb/**") as (_, worker):
        worker.update(sgd(), {"emb/a": torch.ones(2)})
        with pytest.raises(PermissionDeniedError) as refused:
            worker.update(sgd(), {"dense": torch.ones(2)})
    assert refused.value.variable == "dense"
    assert refused.value.task == "/job:ps/task:0"
    assert refused.value.message == (
        "Update is not for /job:worker/task:1, which has the role worker: the policy "
        "'/etc/stratagem/policy' lets it do other things (line 2), and not update 'dense'. If it "
        "is to, add 'worker/1 may update dense' there and start the servers again; else leave this "
        "out of its program"
    )


def test_a_worker_that_leaves_its_task_out_gets_no_further() -> None:
    with (
        worker_under("worker/1 may read emb/**") as (_, worker),
        RawClient(worker.address, TOKEN, Task(), ROLE_WORKER) as nameless,
    ):
        nameless.open()
        with pytest.raises(PermissionDeniedError, match="has rules of tasks, so who names no task"):
            nameless.assign("dense", torch.zeros(2))


def test_a_request_of_which_one_variable_is_refused_changes_none() -> None:
    with worker_under("worker may read **", "worker may update, assign emb/**") as (_, worker):
        gradients = {"emb/a": torch.ones(2), "emb/b": torch.ones(2)}
        worker.update(sgd(), gradients)
        with pytest.raises(PermissionDeniedError, match=r"\(lines 1, 2\), and not update 'dense'"):
            worker.update(sgd(), {**gradients, "dense": torch.ones(2)})
        with pytest.raises(PermissionDeniedError, match="not assign 'dense'"):
            worker.assign("dense", torch.zeros(2))
        values = worker.read("emb/a", "emb/b", "dense")
        assert [value.tolist() for value in values] == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


def test_what_is_refused_takes_no_number_of_the_session() -> None:
    with worker_under("worker may read, update emb/**") as (_, worker):
        with pytest.raises(PermissionDeniedError):
            worker.assign("emb/a", torch.zeros(2))
        worker.update(sgd(), {"emb/a": torch.ones(2)})
        assert worker.read("emb/a")[0].tolist() == [0.0, 0.0]


def test_an_update_that_reads_afterwards_needs_both() -> None:
    with worker_under("worker may update emb/**", "worker may read dense") as (_, worker):

        def send(name: str) -> None:
            header = update_header(worker.key(), sgd(), {"emb/a": torch.ones(2)})
            header.then.selections.add(variable=name)
            worker.update_and_read(header, [torch.ones(2)])

        send("dense")
        with pytest.raises(grpc.RpcError) as refused:
            send("emb/b")
        assert refused.value.code() is DENIED
        assert "not read 'emb/b'" in (refused.value.details() or "")


def test_a_graph_needs_the_right_to_read_and_to_update_what_it_is_bound_to() -> None:
    with worker_under("worker may update emb/**, dense", "worker may read dense") as (_, worker):
        for name, what in (("emb/a", "read"), ("other", "update")):
            header = pb.UpdateHeader(key=worker.key())
            header.program.graph.SetInParent()
            header.bindings.add(variable=name)
            with pytest.raises(PermissionDeniedError, match=f"not {what} '{name}'"):
                worker.upload("UpdateNonSlot", encoded(header, []), pb.UpdateNonSlotResponse)


def test_a_slot_counts_as_its_variable() -> None:
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    with worker_under("worker may read, update, assign emb/a") as (chief, worker):
        worker.update(adam, {"emb/a": torch.ones(2)})
        chief.update(adam, {"emb/b": torch.ones(2)})
        assert worker.read("emb/a/Adam/exp_avg")[0].shape == (2,)
        worker.assign("emb/a/Adam/exp_avg", torch.zeros(2))
        with pytest.raises(PermissionDeniedError, match="not read 'emb/b/Adam/exp_avg'"):
            worker.read("emb/b/Adam/exp_avg")
    # However it is called.
    with worker_under("worker may read emb/b/**") as (chief, worker):
        chief.create_as([slot_spec("emb/b/mine", "dense", torch.ones(2))], [torch.ones(2)])
        assert worker.read("emb/b")[0].tolist() == [1.0, 1.0]
        with pytest.raises(PermissionDeniedError, match="not read 'emb/b/mine'"):
            worker.read("emb/b/mine")


def test_whoever_creates_a_slot_may_create_its_variable() -> None:
    with worker_under("chief may create emb/**, dense") as (chief, _):
        chief.create_as([slot_spec("dense/own", "dense", torch.ones(2))], [torch.ones(2)])
        for name, owner, named in (
            ("emb/a/own", "other", "other"),
            ("elsewhere/own", "dense", "elsewhere/own"),
        ):
            with pytest.raises(PermissionDeniedError, match=f"not create '{named}'"):
                chief.create_as([slot_spec(name, owner, torch.ones(2))], [torch.ones(2)])


def test_snapshots_and_keys_are_read_under_the_same_rules() -> None:
    with worker_under("worker may read emb/**") as (chief, worker):
        adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
        chief.update(adam, {"dense": torch.ones(2)})
        cut = os.urandom(16)
        for rpc in ("HoldSteps", "OpenSnapshot"):
            request = getattr(checkpoint_pb2, f"{rpc}Request")(
                session_id=worker.session_id, cut=cut
            )
            response = getattr(checkpoint_pb2, f"{rpc}Response")
            worker.unary(rpc, request, response, service=SNAPSHOTS)
        deletion = DeleteVariablesRequest(key=chief.key(), names=["dense"])
        chief.unary("DeleteVariables", deletion, DeleteVariablesResponse)

        def read(name: str) -> list[torch.Tensor]:
            selections = [pb.Selection(variable=name)]
            return worker.select(pb.ReadRequest(selections=selections, snapshot=cut))[1]

        assert read("emb/a")[0].tolist() == [1.0, 1.0]
        for name in ("dense", "dense/Adam/exp_avg"):
            with pytest.raises(PermissionDeniedError, match=f"not read '{name}'"):
                read(name)
        # Another variable may have the name meanwhile; what the snapshot has is what counts.
        chief.create(**{"emb/c": torch.ones(2)})
        request = ListKeysRequest(session_id=worker.session_id, table="dense")
        with pytest.raises(PermissionDeniedError, match="not read 'dense'"):
            worker.unary("ListKeys", request, ListKeysResponse)
        with pytest.raises(VariableNotFoundError):
            read("emb/c")


def test_many_variables_of_one_request_are_all_looked_at() -> None:
    with worker_under("worker may assign emb/**") as (_, worker):
        names = [*["emb/a"] * 3000, "dense"]
        value = torch.zeros(2)
        header = AssignHeader(
            key=worker.key(),
            assignments=[Assignment(variable=name, mode=1) for name in names],  # type: ignore[arg-type]
            tensors=[spec_of(value)],
        )
        with pytest.raises(PermissionDeniedError, match="not assign 'dense'"):
            worker.upload("Assign", encoded(header, [value]), AssignResponse)

"""Who may call an RPC, and what the log tells of its calls, as the contract says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodOptions
from google.protobuf.descriptor_pool import DescriptorPool

from stratagem_proto.errors import InternalError, PermissionDeniedError
from stratagem_proto.v1 import access_pb2
from stratagem_proto.v1.session_pb2 import (
    ROLE_COORDINATOR,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    ROLE_READER,
    ROLE_UNSPECIFIED,
    ROLE_WORKER,
    OpenSessionRequest,
    Role,
    Task,
)
from stratagem_proto.v1.variable_requests_pb2 import CreateVariablesHeader, DeleteVariablesRequest
from stratagem_rpc.certificates.identity import ROLES
from stratagem_rpc.serving.access import (
    Access,
    Introduced,
    Need,
    facts_of,
    first_message,
    handshake_finder,
    name_of,
    session_finder,
)
from tests.roles import services

ROOT = Path(__file__).parents[2]
PACKAGES = ("proto", "rpc", "storage", "psserver", "reader", "client", "worker", "deploy")
METHODS = [method for service in services() for method in service.methods]
ACCESS = {method.name: Access(method) for method in METHODS}
WRITES = {
    "Assign",
    "BeginSave",
    "CommitContribution",
    "CreateVariables",
    "DeleteVariables",
    "DrawBatch",
    "EndClosures",
    "FinishStep",
    "OpenPass",
    "Publish",
    "RestoreVariables",
    "SetConsistency",
    "SetDraining",
    "StageVariables",
    "Succeed",
    "TakeTask",
    "Update",
    "UpdateAndRead",
    "UpdateNonSlot",
}


def may_call(role: Role) -> set[str]:
    return {name for name, access in ACCESS.items() if role in access.roles}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_every_rpc_says_who_may_call_it_and_who_calls(method: MethodDescriptor) -> None:
    access, first = Access(method), first_message(method)
    assert access.roles <= set(Role.values()) - {ROLE_UNSPECIFIED}
    assert access.for_anyone is (method.name == "Challenge")
    if handshake_finder(first) is None and not access.for_anyone:
        assert callable(session_finder(first))


def test_an_rpc_that_does_not_say_who_may_call_it_is_not_served() -> None:
    file = FileDescriptorProto(name="open.proto", package="open")
    file.message_type.add(name="Request")
    file.service.add(name="Door").method.add(
        name="Enter", input_type=".open.Request", output_type=".open.Request"
    )
    pool = DescriptorPool()
    pool.Add(file)
    method = pool.FindServiceByName("open.Door").methods_by_name["Enter"]
    with pytest.raises(InternalError, match=r"open\.Door\.Enter does not say by `access` who"):
        Access(method)
    with pytest.raises(InternalError, match=r"open\.Request says neither"):
        session_finder(method.input_type)


def method_with(access: access_pb2.Access) -> MethodDescriptor:
    """An RPC of which the contract says this."""
    options = MethodOptions()
    extensions: Any = options.Extensions
    extensions[access_pb2.access].CopyFrom(access)
    file = FileDescriptorProto(name="some.proto", package="some")
    file.message_type.add(name="Request")
    file.service.add(name="Service").method.add(
        name="Call", input_type=".some.Request", output_type=".some.Request", options=options
    )
    pool = DescriptorPool()
    pool.Add(file)
    return pool.FindServiceByName("some.Service").methods_by_name["Call"]


def test_an_rpc_that_does_not_say_what_policies_decide_is_not_served() -> None:
    need = access_pb2.Need(action=access_pb2.ACTION_READ)
    left_open = access_pb2.Access(roles=[ROLE_WORKER])
    with pytest.raises(InternalError, match=r"some\.Service\.Call does not say .* what policies"):
        Access(method_with(left_open))
    with pytest.raises(InternalError, match="what policies decide"):
        Access(
            method_with(access_pb2.Access(roles=[ROLE_WORKER], needs=[need], by_role_alone=True))
        )
    decided = Access(method_with(access_pb2.Access(roles=[ROLE_WORKER], needs=[need])))
    assert decided.needs == (Need(access_pb2.ACTION_READ),)


def test_no_handler_of_a_service_is_made_without_the_boundary() -> None:
    sources = [
        path
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.endswith("_pb2_grpc.py")
    ]
    making = [
        path.name for path in sources if "method_handlers_generic_handler" in path.read_text()
    ]
    assert making == ["rpc_boundary.py"]


def test_evaluators_and_readers_write_nothing_and_observers_see_the_status_alone() -> None:
    assert ACCESS.keys() >= WRITES
    assert not may_call(ROLE_EVALUATOR) & WRITES
    assert may_call(ROLE_OBSERVER) == {"GetStatus", "LocateTasks"}
    followed = {"ListVersions", "ReadVersion", "OpenLookups", "Lookup"}
    assert may_call(ROLE_READER) == {"GetStatus"} | followed
    assert ACCESS["Work"].roles == {ROLE_COORDINATOR}
    assert ACCESS["Copy"].roles == {ROLE_WORKER}


def fields_of(message: Descriptor, path: list[str]) -> Iterator[FieldDescriptor]:
    name, *rest = path
    field = message.fields_by_name[name]
    yield field
    if rest:
        assert field.message_type is not None
        yield from fields_of(field.message_type, rest)


TOLD = [(method, path) for method in METHODS for path in Access(method).logged]


@pytest.mark.parametrize(("method", "path"), TOLD, ids=lambda each: getattr(each, "name", each))
def test_what_the_log_tells_is_a_name_or_a_setting(method: MethodDescriptor, path: str) -> None:
    *_, last = fields_of(first_message(method), path.split("."))
    assert last.cpp_type not in (FieldDescriptor.CPPTYPE_MESSAGE,)
    assert last.type != FieldDescriptor.TYPE_BYTES
    assert not {"token", "secret"} & {*last.name.split("_")}


def test_who_is_refused_is_told_who_may() -> None:
    caller = Introduced.from_handshake(
        OpenSessionRequest(role=ROLE_WORKER, task=Task(job="worker", index=3))
    )
    with pytest.raises(PermissionDeniedError, match="Work is not for /job:worker/task:3") as error:
        ACCESS["Work"].require(caller)
    assert "role worker; roles that may call it: coordinator." in str(error.value)
    ACCESS["Copy"].require(caller)


def test_certificates_know_the_same_roles() -> None:
    assert {name_of(role) for role in Role.values()} == {"unspecified", *ROLES}


def test_a_role_of_a_later_release_has_a_name() -> None:
    assert name_of(99) == "role 99"


def test_the_log_tells_the_first_names_and_how_many_more_there_are() -> None:
    few = DeleteVariablesRequest(names=["a", "b"])
    assert facts_of(None, few, ["names"]) == {"about": {"names": ["a", "b"]}}
    header = CreateVariablesHeader()
    for number in range(100_000):
        header.variables.add(name=f"w{number}" if number else "w" * 10_000)
    told = facts_of(None, header, ["variables.name"])["about"]["variables.name"]
    assert told["more"] == 99_990
    assert told["first"] == ["w" * 200 + "...", *(f"w{number}" for number in range(1, 10))]

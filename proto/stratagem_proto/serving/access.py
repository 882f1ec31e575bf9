"""Which roles may call an RPC, and what it does, as its option in the contract says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from google.protobuf.descriptor import Descriptor, MethodDescriptor

from stratagem_proto.errors import InternalError, PermissionDeniedError
from stratagem_proto.server_log import printable
from stratagem_proto.serving.needs import Need
from stratagem_proto.v1 import access_pb2
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, RequestKey, Role, Task
from stratagem_proto.wire.fields import first_field

_LONGEST_JOB = 60


class Caller(Protocol):
    """Whoever calls an RPC: a session, or what a handshake says."""

    @property
    def role(self) -> Role:
        """What it is to the cluster."""

    @property
    def task(self) -> Task:
        """Its task; without a job if it has none."""

    @property
    def label(self) -> str:
        """Its name in messages, for instance "/job:worker/task:1"."""


@dataclass(frozen=True)
class Introduced:
    """A caller without a session; as in `Caller`."""

    role: Role
    task: Task
    label: str

    @classmethod
    def by(cls, handshake: OpenSessionRequest) -> Introduced:
        """Return who a handshake says that it is of."""
        task = handshake.task
        job = printable(task.job[:_LONGEST_JOB])
        label = f"/job:{job}/task:{task.index}" if job else "a program without a task"
        return cls(handshake.role, task, label)


def name_of(role: int) -> str:
    """Return the name of a role for people, for instance "worker"."""
    known = role in Role.values()
    return Role.Name(role).removeprefix("ROLE_").lower() if known else f"role {role}"


class Access:
    """Who may call an RPC.

    Args:
        method: The RPC.

    Attributes:
        roles: The roles of those who may.
        told: The paths of the fields whose values the log tells with each call.
        needs: What a policy must let a caller do; nothing if roles alone decide.
        for_anyone: Whether strangers may call it, too.

    Raises:
        InternalError: The contract does not say.
    """

    def __init__(self, method: MethodDescriptor) -> None:
        # Without the types that protoc does not write for extensions.
        extensions: Any = method.GetOptions().Extensions
        option: access_pb2.Access = extensions[access_pb2.access]
        if not (option.roles or option.anyone):
            raise InternalError(f"{method.full_name} does not say by `access` who may call it")
        if bool(option.needs) is option.by_role_alone:
            raise InternalError(
                f"{method.full_name} does not say by `access` what policies decide: give it needs, "
                "or by_role_alone"
            )
        self._rpc, self._allowed = method.name, ", ".join(map(name_of, option.roles))
        self.roles, self.told = frozenset(option.roles), tuple(option.told)
        self.needs = tuple(map(Need.of, option.needs))
        self.for_anyone = option.anyone

    def require(self, caller: Caller) -> None:
        """Check that a caller may call the RPC.

        Raises:
            PermissionDeniedError: It may not.
        """
        if caller.role in self.roles:
            return
        raise PermissionDeniedError(
            f"{self._rpc} is not for {caller.label}, which has the role {name_of(caller.role)}; "
            f"roles that may call it: {self._allowed}. Do this in a program that has such a role, "
            "or correct the task of this one, in TF_CONFIG or its resolver"
        )


Handshake: TypeAlias = Callable[[Any], OpenSessionRequest]
"""Returns the handshake in a request."""

_HANDSHAKES: dict[str, Handshake] = {
    "asking": attrgetter("asking"),
    "open": attrgetter("open.session"),
    "introduction": attrgetter("introduction.asking"),
}
_SESSIONS = {"key": attrgetter("key.session_id"), "session_id": attrgetter("session_id")}


def first_message(method: MethodDescriptor) -> Descriptor:
    """Return what a call begins with: the request, or its header."""
    header = method.input_type.fields_by_name.get("header")
    return (header and header.message_type) or method.input_type


def handshake_in(first: Descriptor) -> Handshake | None:
    """Return what finds the handshake in a message; None if it has none."""
    if first.full_name == OpenSessionRequest.DESCRIPTOR.full_name:
        return lambda request: request
    return _found(first, _HANDSHAKES)


def session_in(first: Descriptor) -> Callable[[Any], bytes]:
    """Return what finds the id of the session that a message names.

    Raises:
        InternalError: It names none.
    """
    find = _found(first, _SESSIONS)
    if find is None:
        raise InternalError(f"{first.full_name} says neither by a session nor itself who calls")
    return find


# A session is named in the first field, and a key may have a report of 256 KiB.
_LONGEST_BEGINNING = 1 << 20


def session_at_beginning(first: Descriptor) -> Callable[[bytes | memoryview], bytes]:
    """Return what finds the id of the session that an encoded message names, without decoding it.

    It returns b"" where the message does not begin with that.
    """
    has_key = "key" in first.fields_by_name

    def find(data: bytes | memoryview) -> bytes:
        field = first_field(data)
        if field is None or len(field) > _LONGEST_BEGINNING:
            return b""
        return RequestKey.FromString(bytes(field)).session_id if has_key else bytes(field)

    return find


def _found(
    first: Descriptor, ways: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Any], Any] | None:
    return next((way for field, way in ways.items() if field in first.fields_by_name), None)

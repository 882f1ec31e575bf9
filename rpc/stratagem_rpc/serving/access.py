"""Which roles may call an RPC, and what it does, as its option in the contract says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message

from stratagem_proto.errors import InternalError, PermissionDeniedError
from stratagem_proto.v1 import access_pb2
from stratagem_proto.v1.access_pb2 import Action
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, RequestKey, Role, Task
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.fields import first_field
from stratagem_rpc.server_log import printable


@dataclass(frozen=True)
class Need:
    """One thing that calls of an RPC do.

    Attributes:
        action: What they do.
        variables: The paths of the fields with the variables that they do it to.
        given: The path of the field without which a call does not do it; empty if it always does.
    """

    action: Action
    variables: Sequence[Sequence[str]] = ()
    given: Sequence[str] = ()

    @classmethod
    def from_message(cls, message: access_pb2.Need) -> Need:
        """Return what the contract says."""
        variables = tuple(map(_path, message.variables))
        return cls(message.action, variables, _path(message.given))

    def is_in(self, request: Message) -> bool:
        """Return whether a request, or its header, asks for it."""
        return not self.given or next(_values(request, self.given), None) is not None

    def names(self, request: Message) -> Iterator[str]:
        """Yield the variables of a request, or its header, that it is about."""
        for path in self.variables:
            for value in _values(request, path):
                if isinstance(value, VariableSpec):
                    yield from _created(value)
                elif value:
                    yield value


def _created(spec: VariableSpec) -> Iterator[str]:
    """Yield the names under which a new variable counts.

    A slot counts as its owner. If its name does not say so, others could take it for a variable
    with the rights of its name, so it counts under that, too.
    """
    if spec.slot_of:
        yield spec.slot_of
    if not (spec.slot_of and spec.name.startswith(f"{spec.slot_of}/")):
        yield spec.name


def _path(text: str) -> Sequence[str]:
    return tuple(text.split(".")) if text else ()


def _values(message: Any, path: Sequence[str]) -> Iterator[Any]:
    value = getattr(message, path[0])
    for each in value if isinstance(value, MutableSequence) else (value,):
        if path[1:]:
            yield from _values(each, path[1:])
        else:
            yield each


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
    def from_handshake(cls, handshake: OpenSessionRequest) -> Introduced:
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
        self.roles, self.logged = frozenset(option.roles), tuple(option.told)
        self.needs = tuple(map(Need.from_message, option.needs))
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


def handshake_finder(first: Descriptor) -> Handshake | None:
    """Return what finds the handshake in a message; None if it has none."""
    if first.full_name == OpenSessionRequest.DESCRIPTOR.full_name:
        return lambda request: request
    return _found(first, _HANDSHAKES)


def session_finder(first: Descriptor) -> Callable[[Any], bytes]:
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


def leading_session_finder(first: Descriptor) -> Callable[[bytes | memoryview], bytes]:
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


_MOST_VALUES = 10
_MOST_CHARACTERS = 200


def facts_of(caller: Caller | None, request: Message | None, told: Sequence[str]) -> dict[str, Any]:
    """Return who calls, and what the request is about.

    Args:
        caller: Who calls; None if that is not known.
        request: The request, or its header; None if it is not known.
        told: The paths of its fields whose values are told, at most ten of each.
    """
    facts = dict[str, Any]()
    if caller is not None:
        facts |= {"caller": caller.label, "role": name_of(caller.role)}
    if request is not None and told:
        facts["about"] = {path: _told(request, path.split(".")) for path in told}
    return facts


def _told(request: Message, path: Sequence[str]) -> Any:
    found = [*islice(_values_of_fields(request, path), _MOST_VALUES)]
    whole = getattr(request, path[0])
    if not isinstance(whole, MutableSequence):
        return found[0]
    left = len(whole) - len(found)
    return {"first": found, "more": left} if left else found


def _values_of_fields(message: Message, path: Sequence[str]) -> Iterator[Any]:
    name, *rest = path
    field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    for each in value if isinstance(value, MutableSequence) else (value,):
        if rest:
            yield from _values_of_fields(each, rest)
        elif field.enum_type is not None:
            known = field.enum_type.values_by_number.get(each)
            yield each if known is None else known.name
        else:
            yield _shortened(each) if isinstance(each, str) else each


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."

"""What a call does that a policy may keep from its caller, as the contract says of its RPC."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from stratagem_proto.v1 import access_pb2
from stratagem_proto.v1.access_pb2 import Action
from stratagem_proto.v1.variable_pb2 import VariableSpec


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
    def of(cls, message: access_pb2.Need) -> Need:
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

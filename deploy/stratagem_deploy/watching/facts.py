"""What servers say, as JSON has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from stratagem_deploy.watching.asking import ServerAnswer


def facts_of(answers: Iterable[ServerAnswer]) -> dict[str, Any]:
    """Return all that servers answered; those that did not have "problem" instead."""
    return {"servers": [_server(answer) for answer in answers]}


def _server(answer: ServerAnswer) -> dict[str, Any]:
    address = {"server": answer.label, "address": answer.place.address}
    if answer.status is None:
        return {**address, "answers": False, "problem": answer.problem}
    return {**address, "answers": True, **plain(answer.status)}


def plain(message: Message) -> dict[str, Any]:
    """Return the fields of a message by name.

    Bytes are hexadecimal and enums their values' own names in lower case; what may be absent, and
    is, is left out.
    """
    fields = message.DESCRIPTOR.fields
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {str(key): value[key] for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_single(field, item) for item in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return value.hex()
    return _word(field.enum_type, value) if field.enum_type is not None else value


def _word(enum: EnumDescriptor, number: int) -> str:
    """Return the value's name without what all names of the enum begin with."""
    unspecified: str = enum.values[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    known = enum.values_by_number.get(number)
    return known.name.removeprefix(prefix).lower() if known else str(number)

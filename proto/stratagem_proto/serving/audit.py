"""What the log of a server tells of who has called it, and about what."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from itertools import islice
from typing import Any

from google.protobuf.message import Message

from stratagem_proto.serving.access import Caller, name_of

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
    found = [*islice(_values(request, path), _MOST_VALUES)]
    whole = getattr(request, path[0])
    if not isinstance(whole, MutableSequence):
        return found[0]
    left = len(whole) - len(found)
    return {"first": found, "more": left} if left else found


def _values(message: Message, path: Sequence[str]) -> Iterator[Any]:
    name, *rest = path
    field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    for each in value if isinstance(value, MutableSequence) else (value,):
        if rest:
            yield from _values(each, rest)
        elif field.enum_type is not None:
            known = field.enum_type.values_by_number.get(each)
            yield each if known is None else known.name
        else:
            yield _shortened(each) if isinstance(each, str) else each


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."

"""The mutations of scheduled functions in a checkpoint, as JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any

from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_psserver.exactly_once.closures import ClosureLedger
from stratagem_psserver.exactly_once.intents import Intent
from stratagem_psserver.exactly_once.spaces import (
    EndedClosures,
    Record,
    Records,
    Space,
    SpaceUser,
)


def dump_closures(ledger: ClosureLedger) -> list[dict[str, Any]]:
    """Return all records, as JSON."""
    return [
        {
            "space": name.hex(),
            "through": space.ended.through,
            "unended": sorted(space.ended.unended),
            "user": [space.user.program.hex(), space.user.client],
            "recorded": [
                [number, [*map(_record_to_json, records.values())]]
                for number, records in space.unended.items()
            ],
        }
        for name, space in ledger.spaces()
    ]


def restore_closures(ledger: ClosureLedger, facts: Iterable[dict[str, Any]]) -> None:
    """Add what `dump_closures` returned to an empty ledger."""
    for name, space in spaces_of(facts):
        ledger.restore(name, space)


def spaces_of(facts: Iterable[dict[str, Any]]) -> Iterator[tuple[bytes, Space]]:
    """Yield each coordinator's name and functions, from what `dump_closures` returned."""
    for item in facts:
        ended = EndedClosures(item["through"], frozenset(item["unended"]))
        unended = {number: _records(items) for number, items in item["recorded"]}
        # Checkpoints of earlier releases do not say who used them.
        program, client = item.get("user", ("", ""))
        user = SpaceUser(bytes.fromhex(program), client)
        yield bytes.fromhex(item["space"]), Space(ended, unended, user)


def _record_to_json(record: Record) -> list[str]:
    reply = b64encode(record.reply.SerializeToString()).decode()
    return [record.intent.summary, record.intent.digest.hex(), reply]


def _records(items: Iterable[list[str]]) -> Records:
    records = map(_record_from_json, items)
    return {record.reply.sequence: record for record in records}


def _record_from_json(item: list[str]) -> Record:
    summary, digest, reply = item
    intent = Intent(summary, bytes.fromhex(digest))
    return Record(intent, RecordedReply.FromString(b64decode(reply)))

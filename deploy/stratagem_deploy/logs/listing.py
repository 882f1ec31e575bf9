"""What is in the log of a server, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from stratagem_deploy.output.console import table_console
from stratagem_proto.errors import NotFoundError
from stratagem_proto.log import LogReader, Record, Written, first_of, segments_in
from stratagem_proto.wire.status import code_of

_KINDS = {
    "opened": "session opened",
    "ended": "session ended",
    "finished": "steps finished",
    "barrier": "arrival at a barrier",
    "arrival": "wish to begin a step",
    "permit": "permit for a step",
    "closures": "scheduled functions ended",
    "reclaimed": "contributions dropped",
    "gave_up": "lost workers given up",
    "leap": "leap",
}


def opened(folder: Path, after: int = 0) -> LogReader:
    """Return a reader of a log.

    Args:
        folder: The folder of one server.
        after: The position behind which records are wanted; the reader may begin earlier.

    Raises:
        NotFoundError: There is no log.
    """
    segments = segments_in(folder) if folder.is_dir() else []
    if not segments:
        raise NotFoundError(
            f"there is no log in {str(folder)!r}; name the folder of one server, such as ps-0 in "
            "that of --durability-folder"
        )
    earlier = [path for path in segments if first_of(path) <= after + 1]
    return LogReader(segments[max(0, len(earlier) - 1) :])


def require_end(folder: Path, reader: LogReader) -> None:
    """Check that a log, which was read, has all that its server had on disk.

    Raises:
        DataLossError: It has lost its end.
    """
    incarnations = {head.incarnation for _, head in opened(folder).heads()}
    written = Written.read(folder)
    if written is not None and written.incarnation in incarnations:
        written.require_reached(folder, reader.position, reader.tail)


def contents(folder: Path) -> dict[str, Any]:
    """Return the facts about a log, as JSON has them.

    Raises:
        NotFoundError: There is no log.
        DataLossError: It is damaged.
    """
    heads = list(opened(folder).heads())
    reader = opened(folder)
    first, kinds, nbytes = reader.position + 1, Counter[str](), Counter[str]()
    for record in reader.records():
        kind = _kind(record)
        kinds[kind] += 1
        nbytes[kind] += record.message.ByteSize() + len(record.tensors)
    head = heads[-1][1] if heads else None
    return {
        "path": str(folder),
        "task": f"/job:{head.task.job}/task:{head.task.index}" if head else "",
        "incarnation": head.incarnation.hex() if head else "",
        "torch": head.kernels.torch if head else "",
        "threads": head.kernels.threads if head else 0,
        "capability": head.kernels.capability if head else "",
        "segments": [path.name for path, _ in heads],
        "first": first,
        "last": reader.position,
        "records": [
            {"kind": kind, "count": count, "nbytes": nbytes[kind]}
            for kind, count in kinds.most_common()
        ],
        "bytes_behind": _bytes_behind(reader),
    }


def _bytes_behind(reader: LogReader) -> int:
    tail = reader.tail
    return tail.path.stat().st_size - tail.offset if tail else 0


def table(listed: Mapping[str, Any]) -> None:
    """Print the facts about a log."""
    shown = Table("record", "count", "bytes", title=listed["path"])
    for each in listed["records"]:
        shown.add_row(each["kind"], str(each["count"]), str(each["nbytes"]))
    console = table_console()
    console.print(shown)
    console.print(
        f"{listed['task']}, records {listed['first']} to {listed['last']}, in "
        f"{len(listed['segments'])} segments; torch {listed['torch']}, {listed['threads']} "
        f"threads, {listed['capability']}"
    )
    if listed["bytes_behind"]:
        console.print(
            f"{listed['bytes_behind']} bytes behind them are room for the next ones, or were not "
            "written in full"
        )


def line(record: Record, as_json: bool) -> str:
    """Return a record in a line: its position, its time and what has changed."""
    moment, what = record.message.unix_seconds, _described(record)
    if as_json:
        return json.dumps({"position": record.position, "unix_seconds": moment, "what": what})
    return f"{record.position}  {datetime.fromtimestamp(moment).isoformat(sep=' ')}  {what}"


def _kind(record: Record) -> str:
    kind = record.message.WhichOneof("change") or "unknown"
    return record.message.mutation.method if kind == "mutation" else _KINDS.get(kind, kind)


def _described(record: Record) -> str:
    if record.message.WhichOneof("change") != "mutation":
        return _kind(record)
    mutation = record.message.mutation
    status = mutation.reply.status
    how = f"{len(record.tensors)} bytes of tensors"
    if status.code:
        how = f"refused: {code_of(status).name}"
    return f"{mutation.method}, {how}"

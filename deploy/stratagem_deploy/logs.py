"""The `stratagem log` commands.

Exit codes: 0 when all is well, 1 when the log is damaged, and 2 when it cannot be read.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from stratagem_deploy.output import exit_on, table_console
from stratagem_proto.errors import DataLossError, NotFoundError
from stratagem_proto.wire.status import code_of
from stratagem_storage.log import LogReader, Record, Written, first_of, segments_in

app = typer.Typer(no_args_is_help=True, help="Look at the logs of servers, and check them.")

Folder = Annotated[
    Path, typer.Argument(help="The folder of one server, such as ps-0 in --durability-folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]

_NO, _UNANSWERED = 1, 2
_POLL_SECONDS = 0.5

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


def _answering() -> ExitStack:
    """Return a block that ends the command with the message of an error, and the code for it."""
    codes = ExitStack()
    codes.enter_context(exit_on(_UNANSWERED))
    codes.enter_context(exit_on(_NO, DataLossError))
    return codes


@app.command()
def inspect(folder: Folder, as_json: AsJson = False) -> None:
    """Count the records of a log by kind, and tell which server wrote it with which kernels.

    Exit code: 0 when it is done, 1 if the log is damaged, and 2 if it cannot be read.
    """
    with _answering():
        listed = _contents(folder)
        if as_json:
            typer.echo(json.dumps(listed, indent=2))
        else:
            _print_contents(listed)


@app.command()
def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read every byte of a log and compare it with its checksums.

    What is behind the last record is no damage: room for the next ones, or an end that was not
    written in full, of which nobody has heard. The server cuts it off when it starts. An end that
    is missing although it had been on disk is damage.

    Exit code: 0 when all is intact, 1 if it is damaged, and 2 if it cannot be read.
    """
    with _answering():
        reader = _open_log(folder)
        count = sum(1 for _ in reader.records())
        incarnations = {head.incarnation for _, head in _open_log(folder).heads()}
        written = Written.read(folder)
        if written is not None and written.incarnation in incarnations:
            written.require_reached(folder, reader.position, reader.tail)
        if as_json:
            typer.echo(json.dumps({"records": count, "last": reader.position}, indent=2))
        else:
            typer.echo(f"{count} records are intact, up to record {reader.position}")


@app.command()
def tail(
    folder: Folder,
    count: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many records.")] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with records that the server adds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as JSON.")] = False,
) -> None:
    """Print the last records of a log, a line each: position, time, and what has changed.

    Exit code: 0 when it is done or was ended by Ctrl-C, 1 if the log is damaged, and 2 if it cannot
    be read.
    """
    with _answering():
        reader = _open_log(folder)
        for record in deque(reader.records(), count):
            typer.echo(_line(record, as_json))
        while follow:
            time.sleep(_POLL_SECONDS)
            last = reader.position
            reader = _open_log(folder, last)
            for record in reader.records():
                if record.position > last:
                    typer.echo(_line(record, as_json))


def _open_log(folder: Path, after: int = 0) -> LogReader:
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


def _contents(folder: Path) -> dict[str, Any]:
    """Return the facts about a log, as JSON has them."""
    heads = list(_open_log(folder).heads())
    reader = _open_log(folder)
    first, kinds, nbytes = reader.position + 1, Counter[str](), Counter[str]()
    for record in reader.records():
        kind = _kind(record)
        kinds[kind] += 1
        nbytes[kind] += record.message.ByteSize() + len(record.tensors)
    head, tail = heads[-1][1] if heads else None, reader.tail
    return {
        "path": str(folder),
        "task": f"/job:{head.task.job}/task:{head.task.index}" if head else "",
        "incarnation": head.incarnation.hex() if head else "",
        "release": head.release if head else "",
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
        "bytes_behind": tail.path.stat().st_size - tail.offset if tail else 0,
    }


def _print_contents(listed: Mapping[str, Any]) -> None:
    shown = Table("record", "count", "bytes", title=listed["path"])
    for each in listed["records"]:
        shown.add_row(each["kind"], str(each["count"]), str(each["nbytes"]))
    console = table_console()
    console.print(shown)
    console.print(
        f"{listed['task']}, records {listed['first']} to {listed['last']}, in "
        f"{len(listed['segments'])} segments; stratagem {listed['release']}, torch "
        f"{listed['torch']}, {listed['threads']} threads, {listed['capability']}"
    )
    if listed["bytes_behind"]:
        console.print(
            f"{listed['bytes_behind']} bytes behind them are room for the next ones, or were not "
            "written in full"
        )


def _line(record: Record, as_json: bool) -> str:
    """Return a record in a line: its position, its time and what has changed."""
    moment, what = record.message.unix_seconds, _kind(record)
    if record.message.WhichOneof("change") == "mutation":
        status = record.message.mutation.reply.status
        refused = f"refused: {code_of(status).name}" if status.code else ""
        what = f"{what}, {refused or f'{len(record.tensors)} bytes of tensors'}"
    if as_json:
        return json.dumps({"position": record.position, "unix_seconds": moment, "what": what})
    return f"{record.position}  {datetime.fromtimestamp(moment).isoformat(sep=' ')}  {what}"


def _kind(record: Record) -> str:
    kind = record.message.WhichOneof("change") or "unknown"
    return record.message.mutation.method if kind == "mutation" else _KINDS.get(kind, kind)

"""The commands `stratagem follow` and `stratagem export`: versions as files."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratagem_deploy.output import exit_on
from stratagem_proto.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    StoreError,
    UnavailableError,
)
from stratagem_storage.stores.places import shared_place

if TYPE_CHECKING:
    from stratagem_reader.sink import StoreSink
    from stratagem_reader.source import Source, Version

Sources = Annotated[
    list[str],
    typer.Argument(
        help="The host:port of each server of a cluster, in the order of their tasks; a folder or "
        "URL that checkpoints are saved to; or serve://HOST:PORT, a reader server."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print answers as JSON, one a line.")]
Seconds = Annotated[float, typer.Option(min=0.0, help="How long to wait for the first version.")]

_UNANSWERED = 2
_ADDRESS = re.compile(r"[^/\s]+:\d{1,5}")
_WAIT_SECONDS = 1.0
_PAUSE_SECONDS = 0.5


def follow(
    sources: Sources,
    to: Annotated[str, typer.Option(metavar="PLACE", help="The folder or URL to write to.")],
    keep: Annotated[int, typer.Option(min=1, help="How many versions to keep there.")] = 3,
    whole_every: Annotated[
        int, typer.Option(min=0, max=64, help="After how many increments a version comes whole.")
    ] = 8,
    versions: Annotated[
        int, typer.Option(min=0, help="End after so many versions; 0 for never.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write each version of a cluster to a folder, for readers of that folder to follow.

    The files are those that servers have sent: whole, or what differs from the version before. A
    folder that has versions already is gone on with. A source that is lost is tried again.

    Exit code: 0 when it is done or was ended by Ctrl-C or SIGTERM, and 2 if it cannot follow or
    cannot write.
    """
    from stratagem_reader.sink import StoreSink

    with exit_on(_UNANSWERED):
        source, ended = _source(sources), threading.Event()
        before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
        sink = StoreSink(source, shared_place(to), keep=keep, whole_every=whole_every)
        left = versions or -1
        try:
            while left and not ended.is_set():
                for version in _written(sink, ended):
                    _show(version, to, as_json)
                    left -= 1
                    if not left:
                        break
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
            source.close()


def export(
    sources: Sources,
    to: Annotated[Path, typer.Option(metavar="FILE", help="The new safetensors file, or its URL.")],
    stored_rows: Annotated[
        bool,
        typer.Option(
            help="Write tables as their stored rows and `NAME[keys]`; dynamic ones need that."
        ),
    ] = False,
    timeout: Seconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Write the present version of a cluster as one file that plain PyTorch programs can load.

    It has values and the chief's buffers, each tensor whole, and no state of optimizers. Rows of
    tables that were never written are filled in, unless --stored-rows is given.

    Exit code: 0 when it is done, 1 if what came is damaged, and 2 if it cannot be read, or if the
    file cannot be written.
    """
    from stratagem_deploy.checkpoints import writing
    from stratagem_reader.sink import StoreSink
    from stratagem_storage.checkpoint.folder import open_checkpoint

    with exit_on(_UNANSWERED), exit_on(1, DataLossError):
        source, ended = _source(sources), threading.Event()
        target = shared_place(to)
        try:
            with tempfile.TemporaryDirectory(prefix="stratagem-") as folder:
                sink, give_up_at = StoreSink(source, Path(folder) / "version"), time.monotonic()
                give_up_at += timeout
                versions: Sequence[Version] = ()
                while not versions:
                    versions = _written(sink, ended)
                    if not versions and time.monotonic() >= give_up_at:
                        raise DeadlineExceededError(
                            f"{source.name!r} had no version in {timeout:g} s; publish one by "
                            "strategy.publish(), or allow more by --timeout"
                        )
                checkpoint = open_checkpoint(Path(folder) / "version")
                count = writing.export(checkpoint, target, stored_rows)
        except FileExistsError as error:
            raise FileExistsError(f"{str(target)!r} exists; give another place") from error
        finally:
            source.close()
        number = versions[-1].number
        _say(
            as_json,
            f"{target} has {count} tensors of version {number}",
            {"path": str(target), "tensors": count, "version": number},
        )


def _source(places: Sequence[str]) -> Source:
    """Return the source that arguments mean.

    Raises:
        InvalidArgumentError: They are no addresses, and several.
    """
    from stratagem_reader.sources import source_at

    if len(places) > 1 and not all(map(_ADDRESS.fullmatch, places)):
        raise InvalidArgumentError(
            f"{' '.join(places)} are several sources; give the host:port of each server of one "
            "cluster, or one folder or URL"
        )
    return source_at(",".join(places), is_whole=True)


def _written(sink: StoreSink, ended: threading.Event) -> Sequence[Version]:
    """Write what has come within a second; say what is in the way if that may pass."""
    try:
        return sink.write_next(_WAIT_SECONDS)
    except (NotFoundError, StoreError, UnavailableError) as error:
        typer.echo(f"stratagem: {error}; it is tried again", err=True)
    ended.wait(_PAUSE_SECONDS)
    return ()


def _show(version: Version, place: str, as_json: bool) -> None:
    age = max(0.0, time.time() - version.published)
    _say(
        as_json,
        f"version {version.number} is in {place}, {age:.1f} s after it was published",
        {"version": version.number, "place": place, "age_seconds": round(age, 3)},
    )


def _say(as_json: bool, text: str, facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts) if as_json else text)

"""The commands `stratagem follow` and `stratagem export`: versions as files."""

from __future__ import annotations

import json
import math
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
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
    SupersededError,
    UnavailableError,
)
from stratagem_storage.stores.places import shared_place

if TYPE_CHECKING:
    from stratagem_reader.sink import Sink
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
_WAIT_SECONDS = 1.0
_PAUSE_SECONDS = 0.5


def follow(
    sources: Sources,
    to: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="The folder or URL to write to; or a Redis, as redis://, rediss:// or unix://, "
            "with its password in STRATAGEM_REDIS_PASSWORD.",
        ),
    ],
    keep: Annotated[
        int | None, typer.Option(min=1, help="How many versions to keep in a folder: 3.")
    ] = None,
    whole_every: Annotated[
        int | None,
        typer.Option(
            min=0, max=64, help="After how many increments a version comes whole to a folder: 8."
        ),
    ] = None,
    versions: Annotated[
        int, typer.Option(min=0, help="End after so many versions; 0 for never.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write each version of a cluster to a folder, for readers to follow, or to a Redis.

    The files are those that servers have sent: whole, or what differs from the version before. In
    Redis, each table is a hash of rows, and a version is put in place all at once. What has a
    version already is gone on with. A source or a Redis that is lost is tried again. Of several
    that write to one Redis, the one that began last does so, and the others stand by.

    Exit code: 0 when it is done or was ended by Ctrl-C or SIGTERM, and 2 if it cannot follow or
    cannot write.
    """
    from stratagem_reader.sources import source_at

    with exit_on(_UNANSWERED):
        source, ended = (
            source_at(sources[0] if len(sources) == 1 else sources, is_whole=True),
            threading.Event(),
        )
        before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
        left = versions or -1
        try:
            sink = _sink_at(source, to, keep, whole_every)
            for version in _all_written(sink, ended):
                _show(version, sink.name, as_json)
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
    to: Annotated[
        Path, typer.Option(metavar="PLACE", help="The new safetensors file, or its URL.")
    ],
    stored_rows: Annotated[
        bool,
        typer.Option(
            help="Write tables as their stored rows and `NAME[keys]`; dynamic ones need that."
        ),
    ] = False,
    parquet: Annotated[
        bool,
        typer.Option(
            "--parquet", help="Write a folder: tables as Parquet files, the rest as safetensors."
        ),
    ] = False,
    timeout: Seconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Write the present version of a cluster as one file that plain PyTorch programs can load.

    It has values and the chief's buffers, each tensor whole, and no state of optimizers. Rows of
    tables that were never written are filled in, unless --stored-rows is given. With --parquet,
    stored rows of tables become Parquet files of at most 64 MiB, with columns `key` and `row`.

    Exit code: 0 when it is done, 1 if what came is damaged, and 2 if it cannot be read, or if the
    file cannot be written.
    """
    from stratagem_deploy.checkpoints import writing
    from stratagem_reader.sources import source_at
    from stratagem_storage.checkpoint.folder import open_checkpoint

    with exit_on(_UNANSWERED), exit_on(1, DataLossError):
        source, target = (
            source_at(sources[0] if len(sources) == 1 else sources, is_whole=True),
            shared_place(to),
        )
        what = "files" if parquet else "tensors"
        try:
            with tempfile.TemporaryDirectory(prefix="stratagem-") as folder:
                version = _first_written(source, Path(folder) / "version", timeout)
                checkpoint = open_checkpoint(Path(folder) / "version")
                if parquet:
                    count = writing.export_parquet(checkpoint, target)
                else:
                    count = writing.export(checkpoint, target, stored_rows)
        except FileExistsError as error:
            raise FileExistsError(f"{str(target)!r} exists; give another place") from error
        finally:
            source.close()
        _say(
            as_json,
            f"{target} has {count} {what} of version {version.number}",
            {"path": str(target), what: count, "version": version.number},
        )


def _sink_at(source: Source, place: str, keep: int | None, whole_every: int | None) -> Sink:
    from stratagem_reader.redis_sink import SCHEMES, RedisSink
    from stratagem_reader.sink import StoreSink

    limits = {"keep": keep, "whole_every": whole_every}
    given = {name: each for name, each in limits.items() if each is not None}
    if not place.startswith(SCHEMES):
        return StoreSink(source, shared_place(place), **given)
    if given:
        raise InvalidArgumentError(
            "--keep and --whole-every are for folders; a Redis has one version"
        )
    return RedisSink(source, place)


def _first_written(source: Source, folder: Path, seconds: float) -> Version:
    """Write the version that there is.

    Raises:
        DeadlineExceededError: There is none in time.
    """
    from stratagem_reader.sink import StoreSink

    sink = StoreSink(source, folder)
    version = next(_all_written(sink, threading.Event(), seconds), None)
    if version is None:
        raise DeadlineExceededError(
            f"{source.name!r} had no version in {seconds:g} s; publish one by "
            "strategy.publish(), or allow more by --timeout"
        )
    return version


def _all_written(
    sink: Sink, ended: threading.Event, seconds: float = math.inf
) -> Iterator[Version]:
    """Yield versions as they are written; say once what is in the way, if that may pass."""
    told, give_up_at = "", time.monotonic() + seconds
    while not ended.is_set() and time.monotonic() < give_up_at:
        try:
            yield from sink.write_next(_WAIT_SECONDS)
            told = ""
        except (NotFoundError, StoreError, SupersededError, UnavailableError) as error:
            if str(error) != told:
                told = str(error)
                typer.echo(f"stratagem: {told}; it is tried again", err=True)
            ended.wait(_PAUSE_SECONDS)


def _show(version: Version, place: str, as_json: bool) -> None:
    age = max(0.0, time.time() - version.published)
    _say(
        as_json,
        f"version {version.number} is in {place}, {age:.1f} s after it was published",
        {"version": version.number, "place": place, "age_seconds": round(age, 3)},
    )


def _say(as_json: bool, text: str, facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts) if as_json else text)

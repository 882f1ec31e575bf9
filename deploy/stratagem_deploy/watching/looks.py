"""The looks of a command at the servers that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stratagem_proto.certificates.presented import presented, presenting
from stratagem_proto.errors import StratagemError
from stratagem_proto.secret_files import TOKEN_FILE

if TYPE_CHECKING:
    from stratagem_deploy.watching.asking import ServerAnswer
    from stratagem_deploy.watching.places import WatchedCluster

Look = Callable[[], "list[ServerAnswer]"]
"""Asks all servers once."""

NOBODY = 2
"""The exit code of a command that has nobody to ask."""


def found_cluster(
    servers: Sequence[str] | None, cluster: Path | None, run: int | None
) -> WatchedCluster:
    """Return the servers that a command is about, and say which ones it has found."""
    from stratagem_deploy.watching.places import find

    with nobody_to_ask():
        found = find(servers or (), str(cluster or ""), run)
    if found.heading:
        typer.echo(f"stratagem: {found.heading}", err=True)
    return found


def look_at(
    found: WatchedCluster,
    token_file: Path | None,
    timeout: float,
    with_variables: bool = False,
) -> Look:
    """Return what asks servers."""
    from stratagem_deploy.watching.asking import ask

    with nobody_to_ask():
        token = TOKEN_FILE.read(found.run.token_file if found.run else token_file)
        certificates = found.run.tls if found.run else None
        if certificates is None:
            # A folder that cannot be used is refused before anybody is asked.
            presented()
    asking = partial(ask, found.places, token, timeout, with_variables)
    return partial(_shown, certificates, asking) if certificates else asking


def _shown(certificates: Path, asking: Look) -> list[ServerAnswer]:
    """Ask the servers of a run that knows us by these certificates."""
    with presenting(certificates):
        return asking()


@contextmanager
def nobody_to_ask() -> Iterator[None]:
    """End the command if there is none."""
    try:
        yield
    except (StratagemError, OSError, ImportError) as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(NOBODY) from error

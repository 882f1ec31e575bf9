"""The `stratagem certs` commands.

Exit codes: 0 when it is done, and 2 when it cannot be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from stratagem_deploy.certificates.subjects import completed_subjects
from stratagem_deploy.output import exit_on, table_console
from stratagem_proto.errors import StratagemError
from stratagem_rpc.certificates.presented import not_installed

app = typer.Typer(
    no_args_is_help=True, help="Make the certificates of a cluster, renew and show them."
)

_AUTHORITY = Path("certs")
_UNDONE = 2
_TIME = "%F %T UTC"

AuthorityFolder = Annotated[
    Path, typer.Option("--authority", help="Folder with ca.crt and ca.key, as init makes it.")
]
Folders = Annotated[
    list[Path], typer.Argument(help="Folders with tls.crt, tls.key and ca.crt.", metavar="FOLDER")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Days = Annotated[float, typer.Option("--days", min=0.001, help="For how many days they are valid.")]


@contextmanager
def _answering() -> Iterator[None]:
    """End the command with the message of an error."""
    with exit_on(_UNDONE, StratagemError, OSError, ImportError):
        try:
            yield
        except ImportError as error:
            raise not_installed() from error


def _print_folders(folders: list[Path], as_json: bool) -> None:
    names = [str(folder) for folder in folders]
    typer.echo(json.dumps(names) if as_json else "\n".join(names))


@app.command()
def init(
    cluster: Annotated[str, typer.Argument(help="Name of the cluster, for instance prod.")],
    folder: AuthorityFolder = _AUTHORITY,
    days: Days = 3650,
    as_json: AsJson = False,
) -> None:
    """Make an authority, which certifies the processes of one cluster.

    Whoever has its ca.key can be any process of the cluster: keep it where no process runs.

    Exit code: 0 when it is made, and 2 if it cannot be.
    """
    with _answering():
        from stratagem_deploy.certificates.authority import Authority

        Authority.new(cluster, days).write(folder)
        _print_folders([folder], as_json)


@app.command()
def issue(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="Who is certified: JOB:N, as in ps:0; JOB:N=ROLE where the role does not follow "
            "from the job, as in worker:0=chief; or observer, for commands that look.",
            metavar="TASK",
            autocompletion=completed_subjects,
        ),
    ],
    authority: AuthorityFolder = _AUTHORITY,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where their folders are made, named like ps-0; by default beside ca.crt."
        ),
    ] = None,
    days: Days = 90,
    as_json: AsJson = False,
) -> None:
    """Certify processes, each with a key and a folder of its own, which it prints.

    Give each machine only the folders of the processes that run there.

    Exit code: 0 when all are certified, and 2 if one cannot be.
    """
    with _answering():
        from stratagem_deploy.certificates.authority import Authority
        from stratagem_deploy.certificates.subjects import subject

        signer, subjects = Authority.read(authority), [subject(task) for task in tasks]
        folders = [(out or authority) / each.folder for each in subjects]
        for folder, each in zip(folders, subjects, strict=True):
            signer.certify(each.role, each.job, each.task, folder, days)
        _print_folders(folders, as_json)


@app.command()
def renew(
    folders: Folders,
    authority: AuthorityFolder = _AUTHORITY,
    days: Days = 90,
    as_json: AsJson = False,
) -> None:
    """Certify the same processes again, with new keys.

    Servers and clients that run show the new certificates in their next handshakes; connections
    that exist go on.

    Exit code: 0 when all are certified, and 2 if one cannot be.
    """
    with _answering():
        from stratagem_deploy.certificates.authority import Authority

        signer = Authority.read(authority)
        for folder, each in [(folder, signer.certified(folder)) for folder in folders]:
            signer.certify(each.role, each.job, each.task, folder, days)
        _print_folders(folders, as_json)


@app.command()
def show(
    folders: Folders,
    as_json: AsJson = False,
) -> None:
    """Check certificates, and tell whose they are and when they end.

    Exit code: 0 when all are valid, and 2 if one is not.
    """
    with _answering():
        listed = [_facts(folder) for folder in folders]
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("folder", "cluster", "task", "role", "valid until", "days left"):
        shown.add_column(heading, overflow="fold")
    for each in listed:
        days = f"{each['days_left']:,.1f}"
        cells = (each[name] for name in ("folder", "cluster", "task", "role", "valid_until"))
        shown.add_row(*map(str, cells), days)
    table_console().print(shown)


def _facts(folder: Path) -> dict[str, str | float]:
    """Return what the certificate in a folder says; raise as `read_certificates`."""
    from stratagem_rpc.certificates.folder import read_certificates

    found = read_certificates(folder)
    identity, leaf = found.identity, found.leaf
    left = leaf.not_valid_after_utc - datetime.now(timezone.utc)
    return {
        "folder": str(folder),
        "cluster": identity.cluster,
        "role": identity.role,
        "task": f"{identity.job}:{identity.task}" if identity.job else "",
        "id": identity.uri,
        "serial": f"{leaf.serial_number:x}",
        "valid_from": leaf.not_valid_before_utc.strftime(_TIME),
        "valid_until": leaf.not_valid_after_utc.strftime(_TIME),
        "days_left": round(left.total_seconds() / 86_400, 2),
    }

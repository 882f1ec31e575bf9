"""The `stratagem checkpoint` commands.

Exit codes: 0 when all is well, 1 when the answer is no (damaged, different), and 2 when the
question could not be answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratagem_deploy.output import exit_on
from stratagem_proto.errors import (
    DataLossError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_storage.stores.places import Place, shared_place

if TYPE_CHECKING:
    from stratagem_storage.checkpoint.policy import CheckpointPolicy

app = typer.Typer(
    no_args_is_help=True, help="Look at checkpoints, check them, and write them in other forms."
)

Source = Annotated[
    Path,
    typer.Argument(
        help="A folder of checkpoints, one of them, or a safetensors file; or the URL of one, such "
        "as s3://BUCKET/PATH."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Servers = Annotated[int, typer.Option(min=1, help="Number of servers.")]
Keep = Annotated[int, typer.Option(min=1, help="How many checkpoints to keep there.")]


class Format(str, Enum):
    """The formats of other programs."""

    safetensors = "safetensors"
    dcp = "dcp"


Chosen = Annotated[
    Format, typer.Option("--format", help="dcp is a folder of torch.distributed.checkpoint.")
]

_NO, _UNANSWERED = 1, 2


@contextmanager
def _answering() -> Iterator[None]:
    """End the command with the message of an error, and the code for it."""
    with exit_on(_UNANSWERED), exit_on(_NO, DataLossError, PermissionDeniedError):
        try:
            yield
        except FileExistsError as error:
            where = repr(str(error.filename)) if error.filename else str(error)
            raise FileExistsError(f"{where} exists; delete it, or give another place") from error


@app.command()
def inspect(source: Source, as_json: AsJson = False) -> None:
    """List the variables of a checkpoint and the state of their optimizers.

    Exit code: 0 when it is done, 1 if the checkpoint is damaged, and 2 if it cannot be read.
    """
    from stratagem_deploy.checkpoints.inspection import contents, table
    from stratagem_storage.checkpoint.folder import open_checkpoint

    with _answering():
        listed = contents(open_checkpoint(shared_place(source)))
        if as_json:
            _print(listed)
        else:
            table(listed)


@app.command()
def verify(source: Source, as_json: AsJson = False) -> None:
    """Read every byte of a checkpoint and compare it with its checksums.

    With STRATAGEM_CHECKPOINT_KEY_FILE also with its signature.

    Exit code: 0 when all is intact, 1 if it is damaged, and 2 if it cannot be read.
    """
    from stratagem_storage.checkpoint.folder import open_checkpoint
    from stratagem_storage.checkpoint.policy import policy_of_environment
    from stratagem_storage.checkpoint.wholes import wholes_of

    with _answering():
        checkpoint = open_checkpoint(shared_place(source), policy_of_environment())
        count = len(wholes_of(checkpoint.index))
        checkpoint.verify()
        nbytes = sum(file.nbytes for file in checkpoint.index.files.values())
        _say(as_json, f"{count} tensors are intact", tensors=count, nbytes=nbytes)


@app.command("export")
def export_file(
    source: Source,
    target: Annotated[Path, typer.Argument(help="The new file, or its URL, or a folder of dcp.")],
    form: Chosen = Format.safetensors,
    stored_rows: Annotated[
        bool, typer.Option(help="Write tables as their stored rows and `NAME[keys]`.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write all of a checkpoint in a form that plain PyTorch programs can load.

    The result has values and optimizers' state, each tensor whole, but not extra, versions and
    sessions. Rows of tables that were never written are filled in. Tables that would take more than
    4 GiB, and dynamic ones, need --stored-rows.

    Exit code: 0 when it is done, 1 if the checkpoint is damaged, and 2 if it cannot be read, or if
    the file cannot be written.
    """
    from stratagem_deploy.checkpoints.dcp import export_dcp
    from stratagem_deploy.checkpoints.writing import export
    from stratagem_storage.checkpoint.folder import open_checkpoint
    from stratagem_storage.checkpoint.policy import policy_of_environment

    if form is Format.dcp and stored_rows:
        raise typer.BadParameter("--stored-rows is for --format safetensors")
    with _answering():
        checkpoint = open_checkpoint(shared_place(source), policy_of_environment())
        if form is Format.dcp:
            count = export_dcp(checkpoint, _folder_of_dcp(target))
        else:
            count = export(checkpoint, shared_place(target), stored_rows)
        where = str(shared_place(target))
        _say(as_json, f"{where} has {count} tensors", path=where, tensors=count)


@app.command("import")
def import_file(  # noqa: PLR0913  # one parameter for each option
    source: Annotated[
        Path, typer.Argument(help="A safetensors file, or its URL, or a folder of dcp.")
    ],
    target: Annotated[Path, typer.Argument(help="The folder of checkpoints, or its URL.")],
    form: Chosen = Format.safetensors,
    prefix: Annotated[
        str, typer.Option(help="Of dcp: take what is under this key, such as model.")
    ] = "",
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="KEY=NAME",
            help="Of dcp: take the state under KEY for the optimizer NAME, as in optim=Adam.",
        ),
    ] = "",
    servers: Servers = 1,
    keep: Keep = 1,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of a state_dict that another program saved.

    The state of an optimizer must have the names of its parameters, as
    torch.distributed.checkpoint.state_dict.get_optimizer_state_dict returns it. torch reads a
    folder of dcp by pickle, which runs code of its author: import only what you trust. Everything
    but tensors is left out, and listed.

    Exit code: 0 when it is done, 1 if the source is damaged, and 2 if it cannot be read, or if the
    checkpoint cannot be written.
    """
    key, given, name = optimizer.partition("=")
    if optimizer and not (key and given):
        raise typer.BadParameter("--optimizer is KEY=NAME, as in optim=Adam")
    if form is Format.dcp:
        _import_dcp(source, (prefix, key, name), target, servers, keep, as_json)
    elif prefix or optimizer:
        raise typer.BadParameter("--prefix and --optimizer are for --format dcp")
    else:
        from stratagem_storage.checkpoint.policy import CheckpointPolicy

        # Whoever imports a file says that it is to be trusted.
        _write_anew(source, CheckpointPolicy(), target, servers, keep, as_json)


def _import_dcp(
    source: Path, names: tuple[str, str, str], target: Path, servers: int, keep: int, as_json: bool
) -> None:
    from stratagem_deploy.checkpoints.dcp import SavedByTorch, TorchNames, import_dcp

    with _answering():
        saved = SavedByTorch(_folder_of_dcp(source), TorchNames(*names))
        path = import_dcp(saved, shared_place(target), servers, keep)
    for name in () if as_json else saved.left_out:
        typer.echo(f"stratagem: {name} is left out", err=True)
    _say_written(path, servers, as_json, left_out=saved.left_out)


def _folder_of_dcp(path: Path) -> Path:
    place = shared_place(path)
    if not isinstance(place, Path):
        raise InvalidArgumentError(
            f"{str(place)!r} is a URL, and folders of dcp are only on file systems, where torch "
            "writes and reads them; use a folder, and copy that"
        )
    return place


@app.command()
def reshard(
    source: Source,
    target: Annotated[Path, typer.Argument(help="The folder of checkpoints, or its URL.")],
    servers: Servers,
    keep: Keep = 1,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint for another number of servers.

    Exit code: 0 when it is done, 1 if the checkpoint is damaged, and 2 if it cannot be read, or if
    the new one cannot be written.
    """
    _write_anew(source, None, target, servers, keep, as_json)


def _write_anew(  # one parameter for each option
    source: Path,
    policy: CheckpointPolicy | None,
    target: Path,
    servers: int,
    keep: int,
    as_json: bool,
) -> None:
    from stratagem_deploy.checkpoints.writing import reshard as written
    from stratagem_storage.checkpoint.folder import open_checkpoint
    from stratagem_storage.checkpoint.policy import policy_of_environment

    with _answering():
        checkpoint = open_checkpoint(shared_place(source), policy or policy_of_environment())
        path = written(checkpoint, shared_place(target), servers, keep)
    _say_written(path, servers, as_json)


def _say_written(path: Place, servers: int, as_json: bool, **facts: object) -> None:
    said = f"{path} is for {servers} server{'' if servers == 1 else 's'}"
    _say(as_json, said, path=str(path), servers=servers, **facts)


@app.command()
def sign(
    source: Annotated[
        Path, typer.Argument(help="A folder of checkpoints, or one of them; or its URL.")
    ],
    key_file: Annotated[
        Path,
        typer.Option(
            "--checkpoint-key-file",
            envvar=CHECKPOINT_KEY_FILE.variable,
            help="File with the secret that signs.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Sign a checkpoint that you trust: servers with the key refuse all others.

    All of it is read and checked. A signed copy becomes the latest checkpoint of its folder, in
    which all others stay.

    Exit code: 0 when it is done, 1 if the checkpoint is damaged, and 2 if it cannot be read, or if
    the copy cannot be written.
    """
    from stratagem_deploy.checkpoints.writing import sign as signed
    from stratagem_storage.checkpoint.folder import open_checkpoint
    from stratagem_storage.stores import store_of

    with _answering():
        place = shared_place(source)
        if store_of(place).is_file(place):
            raise InvalidArgumentError(
                f"{str(place)!r} is a file, which has no index to sign; make a checkpoint of it "
                f"by `stratagem checkpoint import` with {CHECKPOINT_KEY_FILE.variable}"
            )
        checkpoint = open_checkpoint(place)
        folder = signed(checkpoint, checkpoint.folder.parent, CHECKPOINT_KEY_FILE.read(key_file))
    _say(as_json, f"{folder} is signed", path=str(folder))


@app.command()
def diff(first: Source, second: Source, as_json: AsJson = False) -> None:
    """List the variables in which two checkpoints differ.

    Exit code: 0 if they are the same, 1 if they differ or one is damaged, and 2 if one cannot be
    read.
    """
    from stratagem_deploy.checkpoints.inspection import differences
    from stratagem_storage.checkpoint.folder import open_checkpoint

    with _answering():
        opened = [open_checkpoint(shared_place(each)) for each in (first, second)]
        found = list(differences(*opened))
    if as_json:
        _print({"differences": {one.name: one.what for one in found}})
    else:
        for one in found:
            typer.echo(f"{one.name}: {one.what}")
    raise typer.Exit(_NO if found else 0)


def _say(as_json: bool, sentence: str, **facts: object) -> None:
    if as_json:
        _print(facts)
    else:
        typer.echo(sentence)


def _print(facts: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(facts, indent=2))

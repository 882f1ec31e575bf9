"""The `stratagem checkpoint` commands.

Exit codes: 0 when all is well, 1 when the answer is no (damaged, different), and 2 when
the question could not be answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from stratagem_proto.errors import DataLossError, StratagemError

app = typer.Typer(
    no_args_is_help=True,
    help="Look at checkpoints, check them, and write them in other forms.",
)

Source = Annotated[
    Path,
    typer.Argument(help="A folder of checkpoints, one of them, or a safetensors file."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Servers = Annotated[int, typer.Option(min=1, help="Number of servers.")]
Keep = Annotated[int, typer.Option(min=1, help="How many checkpoints to keep there.")]

_NO, _UNANSWERED = 1, 2


@contextmanager
def _answering() -> Iterator[None]:
    """Ends the command with an exit code for what goes wrong."""
    try:
        yield
    except DataLossError as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(_NO) from error
    except (StratagemError, OSError) as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(_UNANSWERED) from error


@app.command()
def inspect(source: Source, as_json: AsJson = False) -> None:
    """List the variables of a checkpoint and the state of their optimizers."""
    from stratagem_deploy.checkpoints.listing import contents, table
    from stratagem_proto.checkpoint.folder import open_checkpoint

    with _answering():
        listed = contents(open_checkpoint(source))
        if as_json:
            _print(listed)
        else:
            table(listed)


@app.command()
def verify(source: Source, as_json: AsJson = False) -> None:
    """Read every byte of a checkpoint and compare it with its checksums."""
    from stratagem_proto.checkpoint.folder import open_checkpoint
    from stratagem_proto.checkpoint.whole import wholes_of

    with _answering():
        checkpoint = open_checkpoint(source)
        count = len(wholes_of(checkpoint.index))
        checkpoint.verify()
        nbytes = sum(file.nbytes for file in checkpoint.index.files.values())
        _say(as_json, f"{count} tensors are intact", tensors=count, nbytes=nbytes)


@app.command("export")
def export_file(
    source: Source,
    target: Annotated[Path, typer.Argument(help="The new safetensors file.")],
    as_json: AsJson = False,
) -> None:
    """Write all of a checkpoint as one file that plain PyTorch programs can load."""
    from stratagem_deploy.checkpoints.resharding import export
    from stratagem_proto.checkpoint.folder import open_checkpoint

    with _answering():
        count = export(open_checkpoint(source), target)
        _say(as_json, f"{target} has {count} tensors", path=str(target), tensors=count)


@app.command("import")
def import_file(
    source: Annotated[Path, typer.Argument(help="A safetensors file.")],
    target: Annotated[Path, typer.Argument(help="The folder of checkpoints.")],
    servers: Servers = 1,
    keep: Keep = 1,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of a state_dict that was saved as a safetensors file."""
    _write_anew(source, target, servers, keep, as_json)


@app.command()
def reshard(
    source: Source,
    target: Annotated[Path, typer.Argument(help="The folder of checkpoints.")],
    servers: Servers,
    keep: Keep = 1,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint for another number of servers."""
    _write_anew(source, target, servers, keep, as_json)


def _write_anew(
    source: Path, target: Path, servers: int, keep: int, as_json: bool
) -> None:
    from stratagem_deploy.checkpoints.resharding import reshard as written
    from stratagem_proto.checkpoint.folder import open_checkpoint

    with _answering():
        path = written(open_checkpoint(source), target, servers, keep)
        said = f"{path} is for {servers} servers"
        _say(as_json, said, path=str(path), servers=servers)


@app.command()
def diff(first: Source, second: Source, as_json: AsJson = False) -> None:
    """List the variables in which two checkpoints differ."""
    from stratagem_deploy.checkpoints.comparison import differences
    from stratagem_proto.checkpoint.folder import open_checkpoint

    with _answering():
        found = list(differences(open_checkpoint(first), open_checkpoint(second)))
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

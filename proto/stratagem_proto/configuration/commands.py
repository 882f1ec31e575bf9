"""Commands whose options are the settings of a pydantic model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from stratagem_proto.configuration.model import ProcessSettings, flag, variable
from stratagem_proto.errors import StratagemError

Settings = TypeVar("Settings", bound=ProcessSettings)

_METAVARS = {int: "INTEGER", float: "FLOAT", Path: "PATH", str: "TEXT"}


def command(program: str, model: type[Settings], body: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer, with an option for each setting.

    Args:
        program: The name of the program in error messages.
        model: The settings.
        body: Called with the settings and with its further parameters, which become arguments of
            the command. Its docstring is the help.
    """
    _, *arguments = inspect.signature(body).parameters.values()

    def run(**given: Any) -> None:
        own = {argument.name: given.pop(argument.name) for argument in arguments}
        with explained(program):
            body(model.read(given), **own)

    run.__doc__ = body.__doc__
    hints = get_type_hints(body, include_extras=True)
    named = [one.replace(annotation=hints[one.name]) for one in arguments]
    parameters = [*named, *_options(model)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


@contextmanager
def explained(program: str) -> Iterator[None]:
    """Print errors that users may cause as one sentence, and exit with code 2."""
    try:
        yield
    except (StratagemError, OSError, ImportError) as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(2) from error


def _options(model: type[ProcessSettings]) -> Iterator[inspect.Parameter]:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for name, field in model.model_fields.items():
        yield inspect.Parameter(name, kind, default=None, annotation=_option(name, field))


def _option(name: str, field: FieldInfo) -> Any:
    of = type_of(field)
    flags = [f"{flag(name)}/--no-{flag(name)[2:]}" if of is bool else flag(name)]
    flags += _extra(field, "short")
    values = _values(field)
    # Options are strings here; the model parses them, so that errors name their source.
    option = typer.Option(
        *flags,
        help=f"{field.description} [{variable(name)}]",
        show_default=default_of(field) or False,
        metavar=_METAVARS.get(of),
        autocompletion=(lambda: values) if values else None,
    )
    return Annotated[bool | None if of is bool else str | None, option]


def _values(field: FieldInfo) -> list[str]:
    """Return all values of a setting that has few, for shells to complete."""
    is_listed = get_origin(field.annotation) is Literal
    return list(get_args(field.annotation)) if is_listed else _extra(field, "values")


def _extra(field: FieldInfo, key: str) -> list[str]:
    extra = field.json_schema_extra
    found = extra.get(key) if isinstance(extra, dict) else None
    return [str(each) for each in found] if isinstance(found, list) else []


def type_of(field: FieldInfo) -> Any:
    """Return the type of a setting, without None."""
    kinds = [one for one in get_args(field.annotation) if one is not NoneType]
    return kinds[0] if kinds else field.annotation


def default_of(field: FieldInfo) -> str:
    """Return the default of a setting as help shows it; "" if it has none."""
    default = field.get_default(call_default_factory=True)
    return "" if default is None or default is False else str(default)

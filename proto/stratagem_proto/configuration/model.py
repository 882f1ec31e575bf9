"""The settings of one kind of process, from wherever they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import Self

from stratagem_proto.configuration.problems import described
from stratagem_proto.configuration.sources import FileSource, TFConfigSource
from stratagem_proto.errors import InvalidArgumentError

_PREFIX = "STRATAGEM_"


class ProcessSettings(BaseSettings):
    """Settings by flags, else by variables, else by `TF_CONFIG`, else by a file.

    A field's description is its help, and its variable is its name in capitals behind "STRATAGEM_".

    Attributes:
        kind: Table of the file.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    kind: ClassVar[str]

    config: Path | None = Field(
        None, description="File with settings, as a TOML table for each subcommand."
    )

    @classmethod
    def settings_customise_sources(  # pydantic's
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say which source wins: an earlier one."""
        others = TFConfigSource(settings_cls), FileSource(settings_cls)
        return (init_settings, env_settings, *others)

    @classmethod
    def read(cls, flags: Mapping[str, Any]) -> Self:
        """Return the settings of this process.

        Args:
            flags: Those of the command line; None where one is not given.

        Raises:
            InvalidArgumentError: One of them cannot be; the message says where it comes from, as in
                `TF_CONFIG.task.index`.
            OSError: The file cannot be read.
        """
        given = {name: flag for name, flag in flags.items() if flag is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            problems = (
                described(_path(given, str(problem["loc"][0])), problem)
                for problem in error.errors()
            )
            raise InvalidArgumentError("; ".join(problems)) from error


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """Return the option of a setting."""
    return "--" + name.replace("_", "-")


def _path(given: Mapping[str, Any], name: str) -> str:
    """Return where a setting comes from that is a flag or a variable."""
    return flag(name) if name in given else variable(name)

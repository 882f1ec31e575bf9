"""The settings of one kind of process, from all their sources."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import Self

from stratagem_proto.configuration.misspelt import misspelt
from stratagem_proto.configuration.problems import described
from stratagem_proto.configuration.sources import FileSource, TFConfigSource
from stratagem_proto.errors import InvalidArgumentError

_LOG = logging.getLogger("stratagem")

_PREFIX = "STRATAGEM_"


class ProcessSettings(BaseSettings):
    """Settings from flags, else environment variables, else `TF_CONFIG`, else a file.

    A field's description is its help. Its environment variable is "STRATAGEM_" and its name in
    capitals.

    Attributes:
        kind: The table of the file.
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
        """Return the sources; an earlier one takes precedence."""
        others = TFConfigSource(settings_cls), FileSource(settings_cls)
        return (init_settings, env_settings, *others)

    @classmethod
    def read(cls, flags: Mapping[str, Any]) -> Self:
        """Return the settings of this process.

        Args:
            flags: The flags of the command line; None for a flag that is not given.

        Raises:
            InvalidArgumentError: A setting is not valid; the message names its source, for instance
                `TF_CONFIG.task.index`. Or the file cannot be read.
        """
        for name, meant in misspelt(os.environ, _PREFIX, map(variable, cls.model_fields)):
            _LOG.warning("the variable %s is ignored; did you mean %s?", name, meant)
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
    """Return the flag that gives a setting, or else its environment variable."""
    return flag(name) if name in given else variable(name)

"""The settings of one kind of process, from flags, variables, TF_CONFIG and a file."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import Self

from stratagem_proto.configuration.tf_config import TFConfig, describe_problem, read_tf_config
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.replica_addresses import replica_addresses, require_one_address

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# The commands that read a file.
_KINDS = ("ps", "run", "serve", "worker")
_TABLES = "[ps], [run], [serve] or [worker], by the command that is to read it"


class Source(PydanticBaseSettingsSource):
    """A source that knows the path of each setting in it."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings of this source."""

    @abstractmethod
    def path(self, name: str) -> str:
        """Return the path of a setting, for messages."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return no value; pydantic requires this method, which `__call__` makes unnecessary."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the settings that no earlier source gives.

        Raises:
            InvalidArgumentError: A setting is not valid.
        """
        return {
            name: self._checked(name, value)
            for name, value in self.settings().items()
            if name not in self.current_state
        }

    def _checked(self, name: str, value: Any) -> Any:
        annotation = self.settings_cls.model_fields[name].rebuild_annotation()
        try:
            return TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            raise InvalidArgumentError(describe_problem(self.path(name), problem)) from error


class TFConfigSource(Source):
    """The task of this process in `TF_CONFIG`, and its address.

    A task of another job is ignored. If flags or variables give another task index, the address in
    `TF_CONFIG` is ignored. Of a task with replicas, the setting `replica` says which one this is.
    """

    def settings(self) -> dict[str, Any]:
        """Return the index and the address of the task."""
        fields = self.settings_cls.model_fields
        if "job" not in fields:
            return {}
        config = read_tf_config()
        self._job = self.current_state.get("job", fields["job"].default)
        self._index = config.task.index
        if config.task.type != self._job or self._index is None:
            return {}
        found: dict[str, Any] = {"task": self._index}
        if str(self.current_state.get("task", self._index)) == str(self._index):
            found |= self._place(_address(config, self._job, self._index))
        return found

    def _place(self, address: str) -> dict[str, Any]:
        """Return what the address of the task says, which may be those of its replicas."""
        label = f"/job:{self._job}/task:{self._index}"
        if "replica" not in self.settings_cls.model_fields:
            require_one_address(label, address)
        addresses = replica_addresses(label, address)
        if len(addresses) == 1:
            return {"bind": address}
        number = str(self.current_state.get("replica", ""))
        if not (number.isdecimal() and int(number) < len(addresses)):
            raise InvalidArgumentError(
                f"{self.path('bind')} has the addresses of {len(addresses)} replicas, {address}, "
                f"and --replica is {number or 'not given'}; say which of them this process is, "
                "from 0"
            )
        return {"bind": addresses[int(number)], "replicas": len(addresses)}

    def path(self, name: str) -> str:
        """Return the path within `TF_CONFIG`."""
        if name == "task":
            return "TF_CONFIG.task.index"
        return f"TF_CONFIG.cluster.{self._job}.{self._index}"


def _address(config: TFConfig, job: str, index: int) -> str:
    tasks = config.cluster.get(job, {})
    if index not in tasks:
        raise InvalidArgumentError(
            f"TF_CONFIG.task.index is {index}: TF_CONFIG.cluster.{job} has no such "
            f"task; it has {len(tasks)}"
        )
    return tasks[index]


class FileSource(Source):
    """A file in TOML, with a table for each kind of process."""

    def __init__(self, settings_cls: Any) -> None:
        super().__init__(settings_cls)
        self._kind: str = settings_cls.kind

    def settings(self) -> dict[str, Any]:
        """Return the table for this kind of process."""
        if not self._file:
            return {}
        tables = _parsed(Path(self._file))
        for name, content in tables.items():
            self._require_table(name, content)
        table: dict[str, Any] = tables.get(self._kind, {})
        for name in table:
            self._require_known(name)
        return table

    def path(self, name: str) -> str:
        """Return the file and the path within it."""
        return f"{self._file}: {self._kind}.{name}"

    @property
    def _file(self) -> str:
        return str(self.current_state.get("config", ""))

    @property
    def _known(self) -> list[str]:
        return [one for one in self.settings_cls.model_fields if one != "config"]

    def _require_table(self, name: str, content: Any) -> None:
        if not isinstance(content, dict):
            near = [f"{self._kind}.{one}" for one in _near(name, self._known)]
            advice = _question(near) or f"; write it below {_TABLES}"
            raise InvalidArgumentError(f"{self._file}: {name} stands in no table{advice}")
        if name not in _KINDS:
            advice = _question([f"[{one}]" for one in _near(name, _KINDS)]) or f"; write {_TABLES}"
            raise InvalidArgumentError(f"{self._file}: [{name}] is no table of settings{advice}")

    def _require_known(self, name: str) -> None:
        if name not in self._known:
            advice = _question(_near(name, self._known))
            raise InvalidArgumentError(f"{self.path(name)} is not a setting{advice}")


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Return the known name that is most like another one, if any is."""
    return difflib.get_close_matches(name, list(known), n=1)


def _question(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(
            f"the file of settings {str(path)!r} cannot be read: {error.strerror}; check --config, "
            "or STRATAGEM_CONFIG"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is not TOML: {error}") from error


# Those that are no settings of one kind of process.
_OTHERS = (
    "STRATAGEM_CHECKPOINT_KEY_FILE",
    "STRATAGEM_FOLD_TRACEBACKS",
    "STRATAGEM_INSECURE",
    "STRATAGEM_NOTICE",
    "STRATAGEM_REDIS_PASSWORD",
    "STRATAGEM_REJOIN_SECONDS",
    "STRATAGEM_TLS",
    "STRATAGEM_TOKEN_FILE",
    "STRATAGEM_TRANSPORT",
)

# Settings of some commands that look like others, which a process of another kind may have.
_LIKE_OTHERS = (
    "STRATAGEM_FULL_TRACEBACKS",
    "STRATAGEM_GRACE",
    "STRATAGEM_REPLICA",
    "STRATAGEM_REPLICAS",
    "STRATAGEM_TASK",
    "STRATAGEM_TASKS",
    "STRATAGEM_TRACES",
)

# Kubernetes sets variables of its own for a service called stratagem, and those of other commands
# may be set besides: they are less alike.
_ALIKE = 0.9


def misspelt(
    environment: Mapping[str, str], prefix: str, settings: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield each variable that nothing reads, and the one that was probably meant.

    Args:
        environment: The variables.
        prefix: What the names of settings begin with.
        settings: The variables of the process's own settings.
    """
    known = {*settings, *_OTHERS, *_LIKE_OTHERS}
    for name in sorted(environment):
        if name.startswith(prefix) and name not in known:
            meant = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
            yield from ((name, each) for each in meant)


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
                describe_problem(_path(given, str(problem["loc"][0])), problem)
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

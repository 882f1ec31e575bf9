"""Where settings come from besides flags and variables of their own."""

from __future__ import annotations

import difflib
import sys
from abc import abstractmethod
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from stratagem_proto.configuration.problems import described
from stratagem_proto.configuration.tf_config import TFConfig, read_tf_config
from stratagem_proto.errors import InvalidArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Source(PydanticBaseSettingsSource):
    """A source that knows the path under which it says a setting."""

    @abstractmethod
    def found(self) -> dict[str, Any]:
        """Return what it says."""

    @abstractmethod
    def path(self, name: str) -> str:
        """Return where it says that."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return what pydantic asks of sources that look at field after field."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return what it says that no source before it has said.

        Raises:
            InvalidArgumentError: That cannot be.
        """
        return {
            name: self._checked(name, value)
            for name, value in self.found().items()
            if name not in self.current_state
        }

    def _checked(self, name: str, value: Any) -> Any:
        annotation = self.settings_cls.model_fields[name].rebuild_annotation()
        try:
            return TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            raise InvalidArgumentError(described(self.path(name), problem)) from error


class TFConfigSource(Source):
    """The task that `TF_CONFIG` says this process is, and where it serves.

    A task of another job says nothing of this process, and a task that flags or variables have
    chosen does not serve where the one of `TF_CONFIG` does.
    """

    def found(self) -> dict[str, Any]:
        """Return the index of the task, and its address."""
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
            found["bind"] = _address(config, self._job, self._index)
        return found

    def path(self, name: str) -> str:
        """Return the entry of the variable."""
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

    def found(self) -> dict[str, Any]:
        """Return the table for this kind."""
        if not self._file:
            return {}
        table: dict[str, Any] = _parsed(Path(self._file)).get(self._kind, {})
        for name in table:
            self._require_known(name)
        return table

    def path(self, name: str) -> str:
        """Return the file and the entry."""
        return f"{self._file}: {self._kind}.{name}"

    @property
    def _file(self) -> str:
        return str(self.current_state.get("config", ""))

    def _require_known(self, name: str) -> None:
        known = [one for one in self.settings_cls.model_fields if one != "config"]
        if name in known:
            return
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgumentError(f"{self.path(name)} is no setting{advice}")


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is no TOML: {error}") from error

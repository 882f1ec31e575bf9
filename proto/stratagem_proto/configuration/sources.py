"""The sources of settings besides flags and environment variables: TF_CONFIG and files."""

from __future__ import annotations

import difflib
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from stratagem_proto.configuration.problems import described
from stratagem_proto.configuration.tf_config import TFConfig, read_tf_config
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.replica_addresses import replica_addresses, require_one_address

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# The commands that read a file.
_KINDS = ("ps", "run", "worker")
_TABLES = "[ps], [run] or [worker], by the command that is to read it"


class Source(PydanticBaseSettingsSource):
    """A source that knows the path of each setting in it."""

    @abstractmethod
    def found(self) -> dict[str, Any]:
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
    """The task of this process in `TF_CONFIG`, and its address.

    A task of another job is ignored. If flags or variables give another task index, the address in
    `TF_CONFIG` is ignored. Of a task with replicas, the setting `replica` says which one this is.
    """

    def found(self) -> dict[str, Any]:
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

    def found(self) -> dict[str, Any]:
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

"""Settings from flags, variables, TF_CONFIG and a file, and errors that name these."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratagem_deploy.running.run import RunOptions
from stratagem_proto.configuration.commands import default_of
from stratagem_proto.configuration.model import ProcessSettings, flag
from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.cli import ServerOptions, app
from stratagem_reader.cli import ReaderServerOptions
from stratagem_worker.cli import WorkerOptions

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"
MODELS: tuple[type[ProcessSettings], ...] = (
    ServerOptions,
    WorkerOptions,
    ReaderServerOptions,
    RunOptions,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def environment(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, Any]) -> None:
    for name, value in variables.items():
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv(name, text)


def task_of(task: Any, **cluster: Any) -> dict[str, Any]:
    """A TF_CONFIG of a parameter server."""
    return {"cluster": cluster, "task": {"type": "ps", "index": task}}


def test_a_replica_serves_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = ["localhost:1111", "localhost:2222,localhost:3333"]
    environment(monkeypatch, {"TF_CONFIG": task_of(1, ps=replicas)})
    for replica, address in enumerate(replicas[1].split(",")):
        options = ServerOptions.read({"replica": str(replica)})
        assert (options.replicas, options.replica, options.bind) == (2, replica, address)
    environment(monkeypatch, {"TF_CONFIG": task_of(0, ps=replicas)})
    assert ServerOptions.read({}).replicas == 1


TWO = {"ps": ["localhost:1111", "localhost:2222"]}


def test_a_flag_wins_over_a_variable_that_over_tf_config_and_that_over_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("file.toml").write_text("[ps]\ntask = 4\ndrain_seconds = 2.5\n[worker]\n")
    config = {"config": "file.toml"}
    assert ServerOptions.read(config).task == 4
    environment(monkeypatch, {"TF_CONFIG": task_of(1, **TWO)})
    assert ServerOptions.read(config).task == 1
    environment(monkeypatch, {"STRATAGEM_TASK": "2"})
    assert ServerOptions.read(config).task == 2
    options = ServerOptions.read({**config, "task": "3", "bind": None})
    assert (options.task, options.drain_seconds) == (3, 2.5)


def test_tf_config_says_where_the_task_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, {"TF_CONFIG": task_of(1, **TWO)})
    assert ServerOptions.read({}).bind == "localhost:2222"
    assert ServerOptions.read({"task": "1"}).bind == "localhost:2222"
    assert ServerOptions.read({"bind": "localhost:3"}).bind == "localhost:3"
    # It knows nothing of where another task is to be.
    assert ServerOptions.read({"task": "0"}).bind == "127.0.0.1:0"
    assert WorkerOptions.read({}).task == 0


def test_switches_can_be_turned_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, {"STRATAGEM_INSECURE": "true"})
    assert ServerOptions.read({}).insecure
    assert not ServerOptions.read({"insecure": False}).insecure


@pytest.mark.parametrize(
    ("flags", "variables", "file", "says"),
    [
        ({"task": "x"}, {}, "", "--task is 'x': input should be a valid integer"),
        ({"task": "-1"}, {}, "", "--task is '-1': input should be greater than or"),
        ({"bind": "here"}, {}, "", "--bind: 'here' is not an address"),
        ({"transport": "pigeon"}, {}, "", "--transport: 'pigeon' is not a transport"),
        ({}, {"STRATAGEM_TASK": "x"}, "", "STRATAGEM_TASK is 'x': input should be"),
        ({}, {"STRATAGEM_BIND": "here"}, "", "STRATAGEM_BIND: 'here' is not an address"),
        ({}, {"TF_CONFIG": task_of("x")}, "", "TF_CONFIG.task.index is 'x': input"),
        ({}, {"TF_CONFIG": task_of(-1, ps={-1: "h:1"})}, "", "TF_CONFIG.task.index is"),
        ({}, {"TF_CONFIG": task_of(2, **TWO)}, "", "TF_CONFIG.cluster.ps has no such"),
        ({}, {"TF_CONFIG": task_of(0, ps=["h"])}, "", "TF_CONFIG.cluster.ps.0: 'h' is"),
        ({}, {"TF_CONFIG": task_of(0, ps=["h:1,i:1"])}, "", "--replica is not given; say which"),
        ({"replica": "2"}, {"TF_CONFIG": task_of(0, ps=["h:1,i:1"])}, "", "--replica is 2; say"),
        ({}, {"TF_CONFIG": task_of(0, ps=["h:1,"])}, "", "of which one is empty"),
        ({}, {"TF_CONFIG": "{"}, "", "environment variable TF_CONFIG is not JSON"),
        ({}, {}, "[ps]\ntask = 'x'", "file.toml: ps.task is 'x': input should be"),
        ({}, {}, "[ps]\nbind = 'x'", "file.toml: ps.bind: 'x' is not an address"),
        ({}, {}, "[ps]\ntsak = 1", "file.toml: ps.tsak is not a setting; did you mean"),
        ({}, {}, "[ps", "file.toml is not TOML"),
        ({}, {}, "task = 1", "file.toml: task stands in no table; did you mean ps.task?"),
        (
            {},
            {},
            "workers = 2",
            "file.toml: workers stands in no table; write it below [ps], [run]",
        ),
        ({}, {}, "ps = 2", "file.toml: ps stands in no table; write it below"),
        ({}, {}, "[pss]", "file.toml: [pss] is no table of settings; did you mean [ps]?"),
        ({}, {}, "[cluster]", "file.toml: [cluster] is no table of settings; write [ps], [run]"),
        ({"config": "none.toml"}, {}, "", "'none.toml' cannot be read: No such file or directory"),
        ({}, {"STRATAGEM_CONFIG": "none.toml"}, "", "check --config, or STRATAGEM_CONFIG"),
    ],
)
def test_what_cannot_be_is_told_with_where_it_comes_from(
    flags: dict[str, str],
    variables: dict[str, Any],
    file: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment(monkeypatch, variables)
    if file:
        Path("file.toml").write_text(file)
        flags = flags | {"config": "file.toml"}
    with pytest.raises(InvalidArgumentError, match=re.escape(says)):
        ServerOptions.read(flags)


def test_a_file_may_have_the_tables_of_all_commands() -> None:
    Path("file.toml").write_text("".join(f"[{model.kind}]\n" for model in MODELS))
    for model in MODELS:
        model.read({"config": "file.toml"})


def test_what_is_overridden_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file.toml").write_text("[ps]\ntask = 'x'\n")
    environment(monkeypatch, {"STRATAGEM_CONFIG": "file.toml"})
    assert ServerOptions.read({"task": "5"}).task == 5


@pytest.mark.parametrize("arguments", [["--task", "x"], ["--config", "no-such-file"]])
def test_the_command_ends_with_one_sentence(arguments: list[str]) -> None:
    finished = CliRunner().invoke(app, arguments)
    assert finished.exit_code == 2
    assert finished.output.startswith("parameter server: ")
    assert len(finished.output.splitlines()) == 1


def test_help_tells_each_setting_with_its_variable() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for name in ServerOptions.model_fields:
        assert flag(name) in shown
        assert f"[STRATAGEM_{name.upper()}]" in shown


def test_the_page_has_all_settings() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(settings())


def settings() -> list[tuple[str, str]]:
    """What the page says of each setting: whose, what it is else, and what for."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for model in MODELS:
        for name, field in model.model_fields.items():
            key = flag(name), default_of(field), field.description or ""
            found.setdefault(key, []).append(model.kind)
    return [
        (name, f"{', '.join(kinds)} | {f'`{default}`' if default else ''} | {what}")
        for (name, default, what), kinds in found.items()
    ]

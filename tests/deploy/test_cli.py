"""The `stratagem` command: quick to answer, and all its parts in one place."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import typer
from typer.testing import CliRunner

import stratagem
from stratagem_deploy.cli import app
from tests.deploy.processes.process_tree import python
from tests.full import a_few
from tests.waiting import eventually


@pytest.mark.parametrize("module", ["cli", "running.cli"])
def test_commands_that_train_nothing_themselves_do_not_wait_for_torch(module: str) -> None:
    loaded = f"import sys, stratagem_deploy.{module}; print('torch' in sys.modules)"
    with python("-c", loaded, output=subprocess.PIPE) as process:
        output, _ = process.communicate()
    assert output == "False\n"


@pytest.mark.parametrize("kind", ["ps", "serve"])
def test_a_server_of_rows_asks_for_huge_pages_before_torch_is_loaded(kind: str) -> None:
    asked = "import os, sys; from typer.testing import CliRunner; from stratagem_deploy.cli import "
    asked += f"app; CliRunner().invoke(app, [{kind!r}, '--help']); "
    asked += "print(os.environ['THP_MEM_ALLOC_ENABLE'], 'torch' in sys.modules)"
    with python("-c", asked, output=subprocess.PIPE) as process:
        output, _ = process.communicate()
    assert output == "1 False\n"


def verbs(group: Any, *above: str) -> Iterator[list[str]]:
    """The words of each command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, *above, name)
        else:
            yield [*above, name]


VERBS = list(verbs(typer.main.get_command(app)))


@a_few(
    "verb",
    [verb for verb in VERBS if verb != ["bench"]],
    "help is written from one table of commands",
    6,
    ids=" ".join,
)
def test_help_tells_the_exit_codes_and_how_to_get_json(verb: list[str]) -> None:
    finished = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "200"})
    assert finished.exit_code == 0
    assert "Exit code: 0" in finished.output
    assert "--json" in finished.output


def test_the_page_has_the_exit_codes_of_each_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text()
    rows = re.findall(r"^\| `stratagem ([\w ]+)` \| .*\b0 \w+", page, re.MULTILINE)
    assert sorted(rows) == sorted(map(" ".join, VERBS))


def test_a_script_that_is_not_there_is_refused() -> None:
    finished = CliRunner().invoke(app, ["run", "no-such-script.py"])
    assert finished.exit_code == 2
    assert "no-such-script.py" in finished.output


def test_a_mistyped_option_is_not_taken_for_the_script() -> None:
    finished = CliRunner().invoke(app, ["run", "--worker", "2", __file__])
    assert finished.exit_code == 2
    assert "--workers" in finished.output


@a_few("kind", ["ps", "worker", "serve"], "workers are started and drained as servers are")
def test_a_server_is_started_found_healthy_and_drained(kind: str, tmp_path: Path) -> None:
    ready, token = tmp_path / "ready", tmp_path / "token"
    token.write_text("the cluster's secret")
    files = ("--ready-file", str(ready), "--token-file", str(token))
    metrics = ("--metrics-bind", "127.0.0.1:0")
    source = ("--from", str(tmp_path)) if kind == "serve" else ()
    command = ("-m", "stratagem_deploy.cli", kind, *source, *files, *metrics)
    with python(*command, output=subprocess.DEVNULL) as server:
        eventually(ready.exists)
        facts = json.loads(ready.read_text())
        health = CliRunner().invoke(app, ["health", facts["health_address"]])
        assert health.exit_code == 0
        with urlopen(f"http://{facts['metrics_address']}/metrics") as response:
            assert f'server="{kind}:0"' in response.read().decode()
        server.terminate()
        assert server.wait() == 0


def test_benchmarks_are_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = CliRunner().invoke(app, ["bench", "transfer"])
    assert missing.exit_code == 2
    assert "in a clone of the sources" in missing.output
    (tmp_path / "benchmarks").mkdir()
    benchmarks = "import sys; sys.exit(7 if sys.argv[1:] == ['transfer', '--big'] else 1)"
    (tmp_path / "benchmarks" / "__main__.py").write_text(benchmarks)
    assert CliRunner().invoke(app, ["bench", "transfer", "--big"]).exit_code == 7


@pytest.mark.parametrize("option", ["--workers", "--json", "--no-verbose", "-v"])
def test_options_behind_the_script_are_not_taken_for_the_scripts(option: str) -> None:
    wide = {"COLUMNS": "300"}
    finished = CliRunner().invoke(app, ["run", __file__, option, "2"], env=wide)
    assert finished.exit_code == 2
    assert "Put it before the script" in " ".join(finished.output.split())


def test_options_behind_dashes_are_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    command = ["-m", "stratagem_deploy.cli", "run", "--ps", "0", str(script)]
    theirs = ["--", "-x", "--workers", "2", "--"]
    with python(*command, *theirs, output=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=120)
    assert "['-x', '--workers', '2', '--']" in output


def test_the_version_is_told() -> None:
    finished = CliRunner().invoke(app, ["--version"])
    assert finished.output == f"stratagem {stratagem.__version__}\n"

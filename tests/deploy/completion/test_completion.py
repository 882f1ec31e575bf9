"""Shells complete commands, options and the values that there are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from stratagem_deploy.processes.resources import RunRecord, on_record
from tests.deploy.completion.shells import SHELLS, Terminal, installed, is_installed, terminal
from tests.deploy.test_cli import VERBS
from tests.full import a_few

# A line with the word to complete, and the word that it becomes.
LINES = {
    "stratagem doc": "doctor",
    "stratagem run --max-r": "--max-restarts",
    "stratagem worker --importable": "--importable-only",
    "stratagem run --durability l": "log",
    "stratagem checkpoint export --format d": "dcp",
    "stratagem certs issue obs": "observer",
    "stratagem run trai": "train.py",
    "stratagem run train.py dat": "data.csv",
}
FILES = ("train.py", "data.csv")


def completions(*words: str) -> list[str]:
    """What is offered for the last of the words of a line."""
    request = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    environment = {"_STRATAGEM_COMPLETE": "complete_bash", **request}
    return CliRunner().invoke(app, env=environment, prog_name="stratagem").output.split()


@a_few(
    "verb",
    [verb for verb in VERBS if verb != ["bench"]],
    "options are offered from one description of all commands",
    5,
    ids=" ".join,
)
def test_each_option_of_a_command_is_offered(verb: list[str]) -> None:
    help_ = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "200"}).output
    options = re.findall(r"^│ ?\*? {0,4}(--[a-z][\w-]*)", help_, re.MULTILINE)
    assert "--json" in options
    assert set(options) - {*completions("stratagem", *verb, "--")} == set()


def test_each_command_is_offered() -> None:
    assert set(completions("stratagem", "")) == {verb[0] for verb in VERBS}
    for group in {verb[0] for verb in VERBS if len(verb) > 1}:
        verbs = {verb[1] for verb in VERBS if verb[0] == group}
        assert set(completions("stratagem", group, "")) == verbs


def test_the_runs_of_this_machine_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    record = RunRecord(pid=4711, script="train.py", cluster={}, token_file=tmp_path / "token")
    with on_record(record):
        assert completions("stratagem", "status", "--run", "") == ["4711"]
    assert completions("stratagem", "status", "--run", "") == []


@pytest.mark.parametrize("before", [["worker", ":", "0", "="], []], ids=["words", "one word"])
def test_the_roles_of_a_certificate_are_offered(before: list[str]) -> None:
    """Bash ends words at ":" and "=", other shells do not."""
    word = "op" if before else "worker:0=op"
    expected = "operator" if before else "worker:0=operator"
    assert completions("stratagem", "certs", "issue", *before, word) == [expected]


@pytest.mark.full("no command that trains nothing loads torch, as test_cli.py shows")
def test_options_are_offered_without_loading_torch(tmp_path: Path) -> None:
    hook = tmp_path / "torch.py"
    hook.write_text("raise SystemExit('torch is loaded')")
    environment = installed(tmp_path)
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    for command in ("run", "ps", "worker"):
        asked = {"_STRATAGEM_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
        asked["COMP_WORDS"] = f"stratagem\n{command}\n--con"
        ended = subprocess.run(
            ["stratagem"], env=environment | asked, stdout=subprocess.PIPE, text=True, check=False
        )
        assert ended.stdout.splitlines() == ["--config"]


@pytest.fixture(scope="module", params=SHELLS)
def shell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Terminal]:
    if not is_installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    for file in FILES:
        (folder / file).touch()
    with terminal(request.param, folder, installed(folder)) as opened:
        yield opened


@pytest.mark.cluster
@pytest.mark.parametrize("line", LINES)
def test_tab_completes_a_line(shell: Terminal, line: str) -> None:
    typed = line.split()[1:-1]
    assert shell.words(line) == [*typed, LINES[line]]


@pytest.mark.cluster
@pytest.mark.skipif(not is_installed("fish"), reason="fish is not installed")
def test_fish_offers_what_a_line_becomes(tmp_path: Path) -> None:
    environment = installed(tmp_path)
    for file in FILES:
        (tmp_path / file).touch()
    asked = " ".join(f'complete -C "{line}";' for line in LINES)
    ended = subprocess.run(
        ["fish", "-c", f"env _STRATAGEM_COMPLETE=source_fish stratagem | source; {asked}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    offered = [line.partition("\t")[0] for line in ended.stdout.splitlines()]
    assert offered == list(LINES.values())


def test_the_shell_that_asks_gets_what_it_reads(tmp_path: Path) -> None:
    shown = subprocess.run(
        ["bash", "--norc", "-c", "stratagem --show-completion; true"],
        env=installed(tmp_path) | {"SHELL": "/bin/bash"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=os.fspath(tmp_path),
    )
    assert "complete -o default -F _stratagem_completion stratagem" in shown.stdout

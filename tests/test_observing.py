"""What the page on watching a cluster shows, works."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from stratagem_deploy.watching.rows import CallRow, ClientRow, ServerRow, StepRow
from stratagem_deploy.watching.tables import headings
from stratagem_proto.errors import VariableNotFoundError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.server_log import LOG, to_stderr
from tests.conftest import TOKEN
from tests.pages import ROOT, programs
from tests.psserver.wire import RawClient

PAGE = (Path(__file__).parent.parent / "docs" / "observing.md").read_text()
PROGRAMS = programs(ROOT / "docs" / "observing.md")
# What is behind a pipe is another program's.
SHOWN = [shlex.split(line) for line in re.findall(r"^\$ stratagem ([^|\n]+)", PAGE, re.MULTILINE)]
SERVERS = ("ps", "worker", "dashboard")
COMMANDS = [command for command in SHOWN if command[0] not in SERVERS]


class Screen(io.StringIO):
    """What a terminal is sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What servers log goes nowhere at first, and again after the test."""
    logger = logging.getLogger("stratagem_server")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logger.level)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a task of a cluster that runs."""
    token_file = tmp_path_factory.mktemp("secret") / "token"
    token_file.write_text(TOKEN)
    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        cluster = json.dumps({"cluster": {"ps": [server.address]}})
        yield {"STRATAGEM_TOKEN_FILE": str(token_file), "TF_CONFIG": cluster}


@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_the_commands_of_the_page_answer(command: list[str], environment: dict[str, str]) -> None:
    quick = ["--interval", "0.01"] if command[0] == "top" else []
    finished = CliRunner().invoke(app, [*command, *quick], env=environment)
    assert finished.exit_code == 0, finished.output


def test_the_page_shows_each_command() -> None:
    assert {command[0] for command in COMMANDS} == {"status", "top", "variables", "doctor"}
    assert ["dashboard"] in SHOWN


def test_the_tables_of_the_page_have_the_columns_that_commands_show() -> None:
    kinds = {"Servers": ServerRow, "Clients": ClientRow, "Steps": StepRow, "Calls": CallRow}
    shown = re.findall(rf"^({'|'.join(kinds)})\n +(.+)$", PAGE, re.MULTILINE)
    assert {title for title, _ in shown} == kinds.keys()
    for title, line in shown:
        words = re.split(" {2,}", line)
        unit = "/s" * any(word.endswith("/s") for word in words)
        # What went wrong has no column, or one without a heading.
        columns = [each for each in headings(kinds[title], unit) if each not in ("", "problem")]
        assert words == columns, f"show the columns of {title} as they are now"


def test_the_program_of_the_page_runs() -> None:
    program, *_ = PROGRAMS
    exec(compile(program, "observing.md", "exec"), {"__name__": "__main__"})


# MLflow imports what warns.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_what_is_logged_reaches_a_tracker(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: see `make trackers-test`")
    monkeypatch.chdir(tmp_path)
    (program,) = [each for each in PROGRAMS if f"import {package}\n" in each]
    exec(compile(program, "observing.md", "exec"), {"__name__": "__main__"})


@pytest.mark.usefixtures("fresh_log")
@pytest.mark.parametrize(("no_color", "colours"), [("", True), ("1", False)])
def test_people_who_want_no_colours_get_none(
    no_color: str,
    colours: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr", screen := Screen())
    to_stderr()
    LOG.info("serving")
    assert ("\x1b[3" in screen.getvalue()) == colours
    assert "serving" in screen.getvalue()


@pytest.mark.usefixtures("fresh_log")
def test_people_who_want_json_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen())
    to_stderr(as_json=True)
    LOG.info("serving")
    assert json.loads(screen.getvalue())["event"] == "serving"


@pytest.mark.usefixtures("fresh_log")
def test_servers_log_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    monkeypatch.setattr("sys.stderr", lines := io.StringIO())
    to_stderr()
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(**{"dense.weight": torch.ones(1)})
        with pytest.raises(VariableNotFoundError):
            client.read("dense.wieght")
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    logged = {one["event"]: one for one in found}
    for line in map(json.loads, shown.splitlines()):
        real = logged[line["event"]]
        assert line.keys() == real.keys()
        assert line.get("why") == real.get("why")

"""What the page on watching a cluster shows, works."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN

PAGE = (Path(__file__).parent.parent / "docs" / "observing.md").read_text()
# What is behind a pipe is another program's.
SHOWN = [
    shlex.split(line)
    for line in re.findall(r"^\$ stratagem ([^|\n]+)", PAGE, re.MULTILINE)
]
COMMANDS = [command for command in SHOWN if command[0] not in ("ps", "worker")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a task of a cluster that runs."""
    token_file = tmp_path_factory.mktemp("secret") / "token"
    token_file.write_text(TOKEN)
    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        cluster = json.dumps({"cluster": {"ps": [server.address]}})
        yield {"STRATAGEM_TOKEN_FILE": str(token_file), "TF_CONFIG": cluster}


@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_the_commands_of_the_page_answer(
    command: list[str], environment: dict[str, str]
) -> None:
    quick = ["--interval", "0.01"] if command[0] == "top" else []
    finished = CliRunner().invoke(app, [*command, *quick], env=environment)
    assert finished.exit_code == 0, finished.output


def test_the_page_shows_each_command() -> None:
    assert {command[0] for command in COMMANDS} == {"status", "top", "variables"}

"""The commands that move tasks between servers, asked of real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from stratagem_deploy.watching.asking import ServerPlace, ask
from stratagem_deploy.watching.doctor import findings
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.moves.servers import MovableServers, client_at, movable
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # What else runs on this machine is recorded elsewhere.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "token").write_text(TOKEN)
    return str(tmp_path / "token")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[MovableServers]:
    with movable(tmp_path) as made:
        yield made


def told(token_file: str, *arguments: str, ps: list[str]) -> tuple[int, str]:
    environment = {
        "STRATAGEM_TOKEN_FILE": token_file,
        "TF_CONFIG": json.dumps({"cluster": {"ps": ps}} if ps else {}),
        "COLUMNS": "160",
    }
    finished = CliRunner().invoke(app, ["servers", *arguments], env=environment)
    return finished.exit_code, finished.output


def test_servers_are_listed_drained_and_added(servers: MovableServers, token_file: str) -> None:
    ps = servers.addresses
    code, output = told(token_file, "list", "--json", ps=ps)
    assert code == 0
    listed: list[dict[str, Any]] = json.loads(output)["servers"]
    assert [(one["server"], one["address"]) for one in listed] == [*enumerate(ps)]
    assert told(token_file, "drain", "0", ps=ps) == (
        0,
        "/job:ps/task:0 has moved from server 0 to 1\n",
    )
    assert servers.tasks(1) == [0, 1]
    code, output = told(token_file, "list", ps=ps)
    assert code == 0 and "ps:0, ps:1" in output and "drained" in output
    # One server that is known suffices, and a server may be named by its address.
    code, output = told(token_file, "drain", ps[1], "--at", ps[1], ps=[])
    assert (code, "server 1 is the last one" in output) == (1, True)
    # Nothing is on a second task that this server could be given.
    code, output = told(token_file, "add", ps[0], ps=ps)
    assert (code, "no server has two tasks with variables" in output) == (1, True)
    assert told(token_file, "rebalance", "--json", ps=ps) == (0, '{"moves": []}\n')


def test_tasks_that_nobody_serves_are_listed_as_such(
    servers: MovableServers, token_file: str
) -> None:
    ps = servers.addresses
    # Of another server nobody has heard yet.
    unbegun = [*ps, "127.0.0.1:9"]
    code, output = told(token_file, "list", ps=unbegun)
    assert (code, "nobody serves ps:2" in output) == (1, True)
    servers.servers[0].stop(grace=0)
    code, output = told(token_file, "list", "--json", ps=unbegun)
    listed = json.loads(output)["servers"]
    assert code == 1
    assert [(one["server"], one["address"]) for one in listed] == [*enumerate(unbegun)]
    assert [[task["task"] for task in one["tasks"]] for one in listed] == [[], [1], []]
    assert [one["unserved"] for one in listed] == [[0], [], [2]]
    # From one server that is known the others are.
    code, output = told(token_file, "list", "--at", ps[1], ps=[])
    assert (code, "nobody serves ps:0" in output) == (1, True)
    assert "stratagem: " not in output


def test_what_is_refused_is_said_in_a_sentence(servers: MovableServers, token_file: str) -> None:
    code, output = told(token_file, "drain", "5", ps=servers.addresses)
    assert code == 1
    assert output.startswith("stratagem: there is no server 5; there are 0 at ")
    code, output = told(token_file, "add", "1", ps=servers.addresses)
    assert (code, "'1' is not an address of a server" in output) == (2, True)
    code, output = told(token_file, "list", ps=[])
    assert (code, "there is no server to ask: give --at HOST:PORT of one" in output) == (2, True)
    with ParameterServer(ServerSettings(token=TOKEN)) as plain:
        code, output = told(token_file, "list", ps=[plain.address])
    assert (code, "Start all of them with the same --arbiter" in output) == (1, True)


@contextmanager
def moved(servers: MovableServers) -> Iterator[list[ServerPlace]]:
    """Where a cluster has its tasks, of which the first has moved and has a client."""
    with client_at(servers.addresses[0]) as client:
        servers.move(0, 1)
        with client_at(servers.located(1, 0)[0].primary.address, client):
            places = enumerate(servers.addresses)
            yield [ServerPlace(address, f"ps:{number}") for number, address in places]


def test_a_task_is_watched_where_it_is(servers: MovableServers) -> None:
    with moved(servers) as places:
        first, second = ask(places, TOKEN, 5.0)
    assert (first.label, first.place.address) == ("ps:0", servers.located(1, 0)[0].primary.address)
    assert first.status and len(first.status.sessions) == 1
    assert (second.label, second.place) == ("ps:1", places[1])


def test_a_task_that_began_with_another_one_is_watched_where_it_is_and_else_said_to_be_lost(
    tmp_path: Path, token_file: str
) -> None:
    with movable(tmp_path, tasks=4, servers=2, durability="log") as servers:
        eventually(lambda: (servers.tasks(0), servers.tasks(1)) == ([0, 2], [1, 3]))
        places = [
            ServerPlace(address, f"ps:{task}") for task, address in enumerate(servers.addresses)
        ]
        # A server of that number is not there yet.
        places += [ServerPlace("127.0.0.1:9", f"ps:{task}") for task in (2, 3)]
        found = ask(places, TOKEN, 5.0)
        assert [(answer.label, answer.serves) for answer in found] == [
            *(("ps:0", True), ("ps:1", True), ("ps:2", True), ("ps:3", True))
        ]
        known = [answer.place for answer in found]
        servers.servers[0].stop(grace=0)
        servers.start(0)
        eventually(lambda: servers.tasks(0) == [0, 2])
        # By then it has another port.
        assert all(answer.serves for answer in ask(known, TOKEN, 5.0))
        servers.servers[0].stop(grace=0)
        (lost,) = [answer for answer in ask(known[2:], TOKEN, 5.0) if answer.is_missed]
    assert "; by the word of other servers, server 0 at 127.0.0.1:" in lost.problem
    assert lost.label == "ps:2"


def test_a_task_that_can_move_needs_no_backup(servers: MovableServers) -> None:
    with moved(servers) as places:
        assert findings(ask(places, TOKEN, 5.0), 2.0) == []

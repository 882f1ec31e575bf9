"""The dashboard over HTTP, about real servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from stratagem_deploy.dashboard import pages
from stratagem_deploy.dashboard.pages import PageServer
from stratagem_deploy.dashboard.watcher import Watched, Watcher
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_deploy.watching.rows import (
    CallRow,
    CheckpointRow,
    ClientRow,
    ServerRow,
    StepRow,
    WaitRow,
)
from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_proto.v1.session_pb2 import HeartbeatRequest, HeartbeatResponse, Task
from stratagem_proto.v1.waits_pb2 import Waiter
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.certified import certified
from tests.conftest import TOKEN
from tests.deploy.dashboard.reader import Reader, served
from tests.deploy.processes.process_tree import python
from tests.psserver.wire import RawClient, optimizer_program
from tests.waiting import eventually

HOSTILE = '<img src=x onerror="alert(1)">\u202e</script>'


@pytest.fixture(scope="module")
def trained() -> Iterator[ParameterServer]:
    """A server with a client, which has stepped a variable and tells hostile words of itself."""
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as client,
    ):
        client.open()
        client.create(weight=torch.ones(2, 3))
        adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
        client.update(adam, {"weight": torch.ones(2, 3)})
        tell_hostile_words(client)
        yield server


def tell_hostile_words(client: RawClient) -> None:
    """Says by a heartbeat what a client may say freely."""
    wait = Waiter(client=HOSTILE, subject=HOSTILE, reason="program", seconds=1.0)
    said = HeartbeatRequest(session_id=client.session_id, doing=HOSTILE, waits=[wait])
    client.unary("Heartbeat", said, HeartbeatResponse)


@pytest.fixture(scope="module")
def page(trained: ParameterServer) -> Iterator[PageServer]:
    """The page of that server."""
    with served(trained.address) as (_, page):
        yield page


@pytest.fixture
def reader(page: PageServer) -> Reader:
    """Who reads the page, and has not signed in."""
    return Reader(page)


def nobody() -> Watcher:
    """Who looks at no server, and has not begun to."""
    return Watcher(Watched(list, list, "", 1.0, 1.0))


@pytest.mark.parametrize("kind", [ServerRow, StepRow, ClientRow, WaitRow, CallRow, CheckpointRow])
def test_the_page_shows_every_column_of_a_table(kind: Any) -> None:
    name = kind.__name__.removesuffix("Row").lower() + "s"
    script = (Path(pages.__file__).parent / "page" / "app.js").read_text()
    (columns,) = re.findall(rf'"{name}-table"(.*?)key: ', script, re.DOTALL)
    # A problem is shown in place of what the server does.
    missing = {one.name for one in fields(kind)} - {"problem"}
    assert set(re.findall(r'\["(\w+)", ', columns)) == missing, f"mend the table {name} in app.js"


@pytest.mark.parametrize("path", ["/", "/look", "/variables", "/app.js", "/no-such-page"])
def test_whoever_has_not_signed_in_sees_nothing(reader: Reader, path: str) -> None:
    status, _, body = reader.get(path)
    assert status == 401
    assert b"`stratagem dashboard` has printed" in body


def test_the_printed_address_signs_in_by_a_cookie_that_scripts_and_other_sites_lack(
    reader: Reader,
) -> None:
    header = reader.sign_in()
    assert "HttpOnly" in header
    assert "SameSite=Strict" in header
    assert reader.get("/")[0] == 200


@pytest.mark.parametrize("token", ["", "guessed", "%ff", "x" * 43])
def test_another_token_signs_nobody_in(reader: Reader, token: str) -> None:
    status, headers, _ = reader.get(f"/login?token={token}")
    assert status == 401
    assert headers["Set-Cookie"] is None


@pytest.mark.parametrize("cookie", ["stratagem=1", "=", ";;;", '"', "\xff=1", "a=b; c"])
def test_another_cookie_is_none(reader: Reader, cookie: str) -> None:
    assert reader.get("/", {"Cookie": cookie})[0] == 401


def test_the_cookie_of_another_dashboard_is_none(reader: Reader, trained: ParameterServer) -> None:
    with served(trained.address) as (other, _):
        other.sign_in()
        name, _, value = other.cookie.partition("=")
        mine = f"stratagem-{reader.address.rpartition(':')[2]}"
        assert reader.get("/", {"Cookie": f"{mine}={value}"})[0] == 401
        assert name != mine


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:80", "127.0.0.1.example", ""])
def test_a_name_that_somebody_has_made_point_here_is_refused(reader: Reader, host: str) -> None:
    reader.sign_in()
    status, _, body = reader.get("/look", {"Host": host})
    assert status == 421
    assert b"servers" not in body


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "[::1]:80", "10.1.2.3"])
def test_numbers_and_names_of_the_machine_are_not(reader: Reader, host: str) -> None:
    reader.sign_in()
    assert reader.get("/look", {"Host": host})[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD"])
def test_the_page_can_only_be_read(reader: Reader, method: str) -> None:
    reader.sign_in()
    status, headers, _ = reader.get("/", method=method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_scripts_come_from_the_page_alone(reader: Reader) -> None:
    reader.sign_in()
    _, headers, page = reader.get("/")
    parts = headers["Content-Security-Policy"].split("; ")
    policy = dict(part.split(" ", 1) for part in parts)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert page.count(b"<script") == page.count(b'<script type="module" src="/') == 1
    assert b"style=" not in page
    assert b"//" not in page


@pytest.mark.parametrize("path", ["/../site.py", "/%2e%2e/site.py", "//etc/passwd", "/look/x"])
def test_nothing_but_the_page_is_there(reader: Reader, path: str) -> None:
    reader.sign_in()
    assert reader.get(path)[0] == 404


@pytest.mark.parametrize("after", ["-1", "x", "9" * 5000, "%D9%A3", ""])
def test_a_number_that_is_none_counts_as_none(reader: Reader, after: str) -> None:
    reader.sign_in()
    assert reader.facts(f"/look?after={after}")["curves"]["number"] >= 0


def test_the_page_says_what_status_says(
    reader: Reader, trained: ParameterServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    environment = {"STRATAGEM_TOKEN_FILE": str(tmp_path / "token"), "COLUMNS": "200"}
    status = ["status", trained.address]
    told = CliRunner().invoke(app, status, env=environment).output
    asked = CliRunner().invoke(app, [*status, "--json"], env=environment)
    (server,) = json.loads(asked.output)["servers"]
    reader.sign_in()
    view = reader.look()["view"]
    (row,), (client,) = view["servers"], view["clients"]
    assert (row["server"], row["address"]) == (server["server"], server["address"])
    assert row["holds"] in told
    assert row["doing"] in told
    assert (client["client"], client["role"]) == ("worker:0", "chief")
    held = sum(one["bytes"] for one in server["parameter_server"]["totals"])
    assert view["summary"]["held"] == f"{held} B"
    (link,) = view["picture"]["links"]
    assert (link["client"], link["server"]) == ("worker:0", "ps:0")


def test_variables_are_those_of_the_command(
    reader: Reader, trained: ParameterServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    environment = {"STRATAGEM_TOKEN_FILE": str(tmp_path / "token")}
    command = ["variables", trained.address, "--json"]
    told = json.loads(CliRunner().invoke(app, command, env=environment).output)["variables"]
    reader.sign_in()
    found = reader.facts("/variables")["variables"]
    assert [{key: each[key] for key in told[0]} for each in found] == told
    slots = "Adam/step, Adam/exp_avg, Adam/exp_avg_sq"
    assert [each["shown"]["slots"] for each in found] == [slots]


def test_what_clients_say_is_shown_as_it_is(reader: Reader) -> None:
    reader.sign_in()
    (wait,) = reader.look()["view"]["waits"]
    assert (wait["client"], wait["waits_for"]) == (HOSTILE, HOSTILE)


def test_calls_and_bytes_are_those_since_the_look_before() -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as client,
        served(server.address) as (reader, _),
    ):
        client.open()
        client.create(weight=torch.ones(256))
        reader.sign_in()
        adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))

        def is_received() -> bool:
            client.update(adam, {"weight": torch.ones(256)})
            return bool(reader.look()["view"]["summary"]["received"] != "0 B/s")

        eventually(is_received)
        eventually(lambda: reader.facts()["view"]["summary"]["received"] == "0 B/s")


def test_a_server_that_ends_is_shown_as_such_and_so_is_its_return() -> None:
    with contextlib.closing(ReservedAddress()) as place:
        address = str(place)
    with served(address, timeout=1.0) as (reader, _):
        reader.sign_in()
        (row,) = reader.look()["view"]["servers"]
        assert f"GetStatus on {address}" in row["problem"]
        assert reader.look()["view"]["summary"]["servers"] == "0 of 1"
        assert any(each["stalls"] for each in reader.look()["view"]["findings"])
        with ParameterServer(ServerSettings(bind=address, token=TOKEN)):
            eventually(lambda: reader.facts()["view"]["servers"][0]["problem"] == "")
        eventually(lambda: "does not answer" in what_happened(reader))


def what_happened(reader: Reader) -> str:
    return "\n".join(each["what"] for each in reader.facts()["events"])


def test_clients_that_come_and_calls_that_fail_are_events() -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        served(server.address) as (reader, _),
    ):
        reader.sign_in()
        reader.look()
        with RawClient(server.address, TOKEN, Task(job="worker", index=7)) as client:
            client.open()
            eventually(lambda: "worker:7 came" in what_happened(reader))
            with pytest.raises(Exception, match="no-such"):
                client.read("no-such")
            eventually(lambda: "a call of Read ended with NOT_FOUND" in what_happened(reader))


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "nowhere", "192.0.2.1:80"])
def test_a_page_for_other_machines_takes_leave_or_certificates(bind: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"--insecure|is not an address"):
        PageServer(nobody(), bind)


def test_a_port_that_is_taken_is_told() -> None:
    page = PageServer(nobody(), "127.0.0.1:0")
    try:
        with pytest.raises(UnavailableError, match="the port is taken"):
            PageServer(nobody(), page.address)
    finally:
        page.stop()


@pytest.mark.full("the page is shown by a server in this process")
def test_the_command_prints_one_address_and_ends_by_a_signal(
    trained: ParameterServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    arguments = ("-m", "stratagem_deploy.cli", "dashboard", trained.address, "--json")
    options = ("--token-file", str(tmp_path / "token"))
    with python(*arguments, *options, output=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert line["url"].startswith(f"http://{line['address']}/login?token=")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_nobody_to_ask_is_exit_code_2() -> None:
    finished = CliRunner().invoke(app, ["dashboard", "nowhere"], env={"TF_CONFIG": "{}"})
    assert finished.exit_code == 2
    assert "'nowhere' is not an address" in finished.output


def test_a_page_with_a_certificate_is_encrypted_for_browsers_that_have_none(tmp_path: Path) -> None:
    folder = certified(tmp_path).of("observer")
    page = PageServer(nobody(), "0.0.0.0:0", tls=folder)
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.check_hostname = False
    try:
        url = page.url.replace("0.0.0.0", "127.0.0.1")
        with urlopen(url, context=context, timeout=60) as answer:
            assert url.startswith("https://")
            assert "; Secure" in answer.headers["Set-Cookie"]
    finally:
        page.stop()

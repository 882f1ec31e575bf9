"""The commands that show what servers are doing, asked of real ones."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import stratagem
from stratagem._coordinator.standby import Candidate
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.session import Identity
from stratagem_deploy import LocalCluster
from stratagem_deploy.cli import app
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, amount, ask, quantile, span
from stratagem_deploy.watching.tables import show
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.figures import Histogram
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, optimizer_program


@pytest.fixture(scope="module")
def trained() -> Iterator[ParameterServer]:
    """A server with a client, which has stepped a variable."""
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(weight=torch.ones(2, 3))
        adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
        client.update(adam, {"weight": torch.ones(2, 3)})
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(TOKEN)
    return str(tmp_path / "token")


def told(token_file: str, *arguments: str, cluster: Any = None) -> tuple[int, str]:
    environment = {
        "STRATAGEM_TOKEN_FILE": token_file,
        "TF_CONFIG": json.dumps(cluster or {}),
    }
    finished = CliRunner().invoke(app, arguments, env=environment)
    return finished.exit_code, finished.output


def test_the_status_of_a_cluster_is_told_as_json(trained: ParameterServer, token_file: str) -> None:
    # Between-graph workers serve nobody, at whatever port.
    cluster = {"ps": [trained.address], "worker": ["nowhere:0", "127.0.0.1:9"]}
    code, output = told(token_file, "status", "--json", cluster={"cluster": cluster})
    server, worker = json.loads(output)["servers"]
    assert code == 0
    assert (server["server"], server["answers"]) == ("ps:0", True)
    methods = {method["method"]: method for method in server["methods"]}
    assert methods["Update"]["ended"] == {"OK": 1}
    assert methods["Update"]["received_bytes"]["sum"] == 24
    totals = {one["kind"]: one for one in server["parameter_server"]["totals"]}
    assert totals["model"]["bytes"] == 24
    assert server["sessions"][0]["role"] == "chief"
    assert (worker["server"], worker["answers"]) == ("worker:1", False)


def test_the_status_of_a_server_is_told_in_words(trained: ParameterServer, token_file: str) -> None:
    code, output = told(token_file, "status", trained.address)
    assert code == 0
    assert "4 variables, 76 B" in output
    assert "worker:0" in output


def test_the_doctor_tells_servers_without_clients_from_a_healthy_cluster(
    trained: ParameterServer, server: ParameterServer, token_file: str
) -> None:
    code, output = told(token_file, "doctor", trained.address)
    assert (code, output) == (0, "nothing is wrong, as far as servers can tell\n")
    code, output = told(token_file, "doctor", server.address)
    assert code == 0
    assert "no client is connected" in output
    assert "nothing is wrong" not in output


def test_servers_that_other_machines_reach_unencrypted_are_named(token_file: str) -> None:
    settings = ServerSettings(token=TOKEN, metrics_bind="0.0.0.0:0", insecure=True)
    with ParameterServer(settings) as exposed:
        _, output = told(token_file, "status", exposed.address)
        assert "What ps:0 send is not encrypted; --tls encrypts it." in output
        _, output = told(token_file, "status", exposed.address, "--json")
        assert json.loads(output)["servers"][0]["insecure"] is True


def test_the_program_that_coordinates_is_named(trained: ParameterServer, token_file: str) -> None:
    servers = ServerGroup([trained.address], Identity(ROLE_COORDINATOR, token=TOKEN))
    candidate = Candidate(servers, os.urandom(16), "process 7 of elsewhere")
    candidate.await_turn()
    _, output = told(token_file, "status", trained.address, "--json")
    (server,) = json.loads(output)["servers"]
    incumbent = server["parameter_server"]["incumbent"]
    assert (incumbent["number"], incumbent["name"]) == (1, "process 7 of elsewhere")
    _, output = told(token_file, "status", trained.address)
    assert "coordinates" in output
    candidate.leave(finished=True)
    _, output = told(token_file, "status", trained.address)
    assert "coordinates" not in output
    candidate.close()
    servers.close()


def test_variables_are_listed_with_their_places_and_slots(
    trained: ParameterServer, token_file: str
) -> None:
    code, output = told(token_file, "variables", trained.address, "--json")
    (weight,) = json.loads(output)["variables"]
    assert code == 0
    assert (weight["place"], weight["version"], weight["bytes"]) == ("ps:0", 2, 24)
    assert weight["shape"] == [2, 3]
    assert {slot["name"] for slot in weight["slots"]} >= {"weight/Adam/exp_avg"}
    _, output = told(token_file, "variables", trained.address)
    assert "Adam/exp_avg_sq" in output.replace("weight/", "")


@pytest.mark.parametrize("command", ["status", "variables", "top"])
def test_nothing_is_cut_where_there_is_no_terminal(command: str, tmp_path: Path) -> None:
    name = "encoder/" * 20 + "weight"
    job = "j" * 100
    with (
        ParameterServer(ServerSettings(token=TOKEN, job=job)) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(**{name: torch.ones(2)})
        (tmp_path / "token").write_text(TOKEN)
        waiting = ("--interval", "0.01") if command == "top" else ()
        code, output = told(str(tmp_path / "token"), command, server.address, *waiting)
    assert code == 0
    assert job in output
    assert name in output or command != "variables"


def test_the_port_for_health_checks_is_told_apart(
    trained: ParameterServer, token_file: str
) -> None:
    code, output = told(token_file, "status", trained.health_address)
    assert code == 1
    assert "Method not found! This is probably its port for health checks" in output


def test_top_looks_twice_where_nobody_watches(trained: ParameterServer, token_file: str) -> None:
    looking = ("top", trained.address, "--interval", "0.1")
    code, output = told(token_file, *looking)
    assert code == 0
    assert "calls/s" in output
    assert "GetStatus" in output  # one of the two looks
    assert "Update" not in output  # before the first
    code, output = told(token_file, *looking, "--once", "--json")
    assert (code, json.loads(output)["servers"][0]["answers"]) == (0, True)


def test_top_shows_one_look_after_the_other_on_a_terminal(
    trained: ParameterServer,
) -> None:
    looks = 0

    def look() -> list[ServerAnswer]:
        nonlocal looks
        if looks == 2:
            raise KeyboardInterrupt
        looks += 1
        return ask([ServerPlace(trained.address)], TOKEN, 5.0)

    screen = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        show(look, 0.01, Console(file=screen, force_terminal=True, width=160))
    # The first look has nothing to compare with.
    _, _, later = screen.getvalue().partition("Calls")
    assert "calls/s" in later.partition("Calls")[2]


@pytest.mark.parametrize("command", ["status", "variables", "top"])
def test_a_server_that_does_not_answer_is_exit_code_1(
    command: str, trained: ParameterServer, token_file: str
) -> None:
    with contextlib.closing(ReservedAddress()) as nowhere:
        both = (trained.address, str(nowhere), "--timeout", "2")
        waiting = ("--interval", "0.01") if command == "top" else ()
        code, output = told(token_file, command, *both, *waiting)
    assert code == 1
    assert f"stratagem: GetStatus on {nowhere}" in output


def test_a_wrong_secret_is_told_apart(trained: ParameterServer, token_file: str) -> None:
    Path(token_file).write_text("guessed by somebody")
    code, output = told(token_file, "status", trained.address)
    assert code == 1
    assert "another cluster token than this program, which has sent it nothing" in output
    code, output = told(token_file, "doctor", trained.address)
    assert code == 1
    assert "serves, and does not take this command" in output and "--restore" not in output


@pytest.mark.parametrize("command", ["status", "variables", "top", "doctor"])
def test_certificates_that_cannot_be_used_are_told_before_anybody_is_asked(
    command: str, trained: ParameterServer, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TLS", "nowhere")
    code, output = told(token_file, command, trained.address)
    assert code == 2
    assert output.startswith("stratagem: nowhere/tls.crt cannot be read")


@pytest.mark.parametrize(
    ("arguments", "cluster", "what"),
    [
        ((), {}, "give HOST:PORT of each"),
        (("127.0.0.1",), {}, "'127.0.0.1' is not an address of a server; give HOST:PORT"),
        (("127.0.0.1:0",), {}, "a port from 1 to 65535, as in 127.0.0.1:2222"),
        ((), {"cluster": {"ps": 3}}, "TF_CONFIG.cluster.ps"),
        (("--cluster", "none"), {}, "'none' cannot be read: No such file or directory; give"),
    ],
)
def test_nobody_to_ask_is_exit_code_2(
    arguments: tuple[str, ...],
    cluster: Any,
    what: str,
    token_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What runs on this machine besides is on record elsewhere.
    monkeypatch.setattr("tempfile.tempdir", str(Path(token_file).parent))
    code, output = told(token_file, "status", *arguments, cluster=cluster)
    assert code == 2
    assert what in output


def test_a_cluster_may_be_in_a_file(
    trained: ParameterServer, token_file: str, tmp_path: Path
) -> None:
    (tmp_path / "cluster").write_text(json.dumps({"cluster": {"ps": [trained.address]}}))
    code, _ = told(token_file, "status", "--cluster", str(tmp_path / "cluster"))
    assert code == 0


def test_a_server_says_where_and_when_it_wrote_a_checkpoint(tmp_path: Path) -> None:
    with LocalCluster(ps=1) as cluster:
        resolver = cluster.resolver("worker", 0)
        address = resolver.cluster_spec().task_address("ps", 0)
        with stratagem.ParameterServerStrategy(resolver) as strategy:
            with strategy.scope():
                torch.nn.Linear(2, 1)
            strategy.save(tmp_path)
        (answer,) = ask([ServerPlace(address)], resolver.cluster_token or "", 30.0)
    assert answer.status is not None, answer.problem
    checkpoint = answer.status.parameter_server.checkpoint
    assert (checkpoint.folder, checkpoint.saves) == (str(tmp_path), 1)
    assert 0 <= checkpoint.age_seconds < 60
    assert checkpoint.bytes > 0


def test_the_commands_say_their_exit_codes() -> None:
    for command in ("status", "top", "variables"):
        finished = CliRunner().invoke(app, [command, "--help"])
        assert "Exit code: 0" in finished.output


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (amount(0), "0 B"),
        (amount(1536), "1.5 KiB"),
        (amount(3 << 40), "3.0 TiB"),
        (span(25e-6), "25 µs"),
        (span(0.0015), "1.5 ms"),
        (span(59), "59 s"),
        (span(125), "2 min 5 s"),
        (span(7300), "2 h 1 min"),
    ],
)
def test_numbers_are_short(shown: str, expected: str) -> None:
    assert shown == expected


def test_quantiles_are_the_bounds_of_their_buckets() -> None:
    counted = Histogram((1.0, 2.0, 4.0))
    assert counted.message() is None
    for value in (0.5, 1.0, 1.5, 100.0):
        counted.observe(value)
    message = counted.message()
    assert message is not None
    assert list(message.counts) == [2, 1, 0, 1]
    assert [quantile(message, share) for share in (0.5, 0.75, 1.0)] == [1.0, 2.0, 4.0]

"""The health of a real server, in words, as JSON and as an exit code."""

from __future__ import annotations

import contextlib
import json
import threading

from typer.testing import CliRunner

from stratagem_deploy.cli import app
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.health import HealthServer
from stratagem_rpc.serving.process import LoopThread
from tests.relays import Relay
from tests.waiting import eventually


def ask(*arguments: str) -> tuple[int, str]:
    finished = CliRunner().invoke(app, ["health", *arguments])
    return finished.exit_code, finished.output


def test_a_server_that_serves_is_exit_code_0(server: ParameterServer) -> None:
    code, output = ask(server.health_address)
    assert code == 0
    assert f"{server.health_address} serves" in output


def test_a_server_that_drains_is_exit_code_1() -> None:
    draining = HealthServer("127.0.0.1:0", ParameterServer.service)
    loop = LoopThread.acquire()
    draining.start(loop, lease_seconds=30.0)
    draining.announce_drain()
    loop.release()
    code, output = ask(draining.address)
    draining.stop()
    assert code == 1
    assert "does not serve" in output


def test_a_server_whose_event_loop_does_not_turn_for_a_lease_does_not_serve() -> None:
    turns = threading.Event()
    with ParameterServer(ServerSettings(lease_seconds=0.5)) as server:
        server._loop.call(turns.wait)
        try:
            eventually(lambda: ask(server.health_address)[0] == 1)
        finally:
            turns.set()
        eventually(lambda: ask(server.health_address)[0] == 0)


def test_a_server_whose_event_loop_turns_within_a_lease_serves() -> None:
    turns, asked = threading.Event(), threading.Event()
    with ParameterServer(ServerSettings(lease_seconds=600.0)) as server:
        server._loop.call(asked.set)
        server._loop.call(turns.wait)
        assert asked.wait(60)
        assert ask(server.health_address)[0] == 0
        turns.set()


def test_an_address_without_a_server_is_exit_code_2() -> None:
    with contextlib.closing(ReservedAddress()) as nowhere:
        code, output = ask(str(nowhere), "--timeout", "2")
    assert code == 2
    assert f"{nowhere} cannot be reached" in output


def test_a_server_that_greets_connections_late_is_waited_for(server: ParameterServer) -> None:
    with Relay(int(server.health_address.rpartition(":")[2])) as relay:
        relay.hold()
        threading.Timer(1.5, relay.release).start()
        code, output = ask(f"127.0.0.1:{relay.port}", "--timeout", "60")
    assert code == 0, output


def test_the_main_port_is_told_apart(server: ParameterServer) -> None:
    code, output = ask(server.address)
    assert code == 2
    assert "This is probably its main port; give the one of --health-bind" in output


def test_an_address_without_a_port_is_asked_nothing() -> None:
    code, output = ask("127.0.0.1")
    assert code == 2
    assert "'127.0.0.1' is not an address of a server; give HOST:PORT" in output


def test_json_has_the_same_answer(server: ParameterServer) -> None:
    code, output = ask(server.health_address, "--json")
    answer = json.loads(output)
    assert code == 0
    assert answer["address"] == server.health_address
    assert answer["health"] == "SERVING"
    assert 0 < answer["seconds"] < 60

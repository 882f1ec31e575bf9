"""The demo in containers, whatever happens to them."""

from __future__ import annotations

import json

import pytest

from tests.compose.conftest import FOLDER, ROOT
from tests.compose.project import Project
from tests.compose.training import checkpoints
from tests.demo import BY_TURNS, CLOSE, DEMO_RMSE, demo_error
from tests.eavesdropping import WORDS, Overheard, overheard
from tests.waiting import eventually

pytestmark = pytest.mark.compose

# Fewer bytes would mean that most of the training was not overheard.
MUCH = 50_000_000


def trained_in_public(project: Project, *words: str) -> Overheard:
    """Train the demo while somebody listens who looks for words."""
    created = project.compose("create", "--no-build", "--pull", "never")
    assert created.returncode == 0, created.stderr
    engine = FOLDER / "pid"
    network = f"/proc/{engine.read_text()}/ns/net" if engine.exists() else ""
    with overheard(project.bridge, words, network) as found:
        ended = project.up("--exit-code-from", "worker-0")
    assert ended.returncode == 0, ended.stderr
    print(f"\nin containers: test RMSE {demo_error(ended.stdout)}")
    print(f"{found.nbytes:,} bytes were overheard, and {sorted(found.words)}")
    assert abs(demo_error(ended.stdout) - DEMO_RMSE) < CLOSE
    assert found.nbytes > MUCH
    return found


def test_the_demo_trains_and_its_exit_code_is_that_of_the_command(
    project: Project,
) -> None:
    # What the test of certificates shows that nobody hears.
    assert trained_in_public(project, *WORDS).words == {*WORDS}
    for server in ("ps-0", "ps-1"):
        assert '"event": "stopped"' in project.logs(server)
        assert project.inspect(server, "{{.State.ExitCode}}") == "0"


def test_a_worker_and_a_server_that_crash_come_back_and_training_ends_well(
    project: Project,
) -> None:
    started = project.up("--detach")
    assert started.returncode == 0, started.stderr
    eventually(lambda: checkpoints(project) >= 1, seconds=300, poll=0.5)
    project.crash("worker-1")
    project.crash("ps-1")
    assert project.exit_code("worker-0") == 0
    assert project.exit_code("worker-1") == 0
    assert (project.restarts("worker-1"), project.restarts("ps-1")) == (1, 1)
    print("", project.logs("ps-1"), project.logs("worker-0"), sep="\n")
    assert '"event": "restored"' in project.logs("ps-1")
    # While a checkpoint waits for the session of the worker that crashed, that one may be back.
    assert abs(demo_error(project.logs("worker-0")) - DEMO_RMSE) < BY_TURNS


def test_servers_with_a_log_that_crash_lose_nothing(durable_project: Project) -> None:
    project = durable_project
    started = project.up("--detach")
    assert started.returncode == 0, started.stderr
    eventually(lambda: checkpoints(project) >= 1, seconds=300, poll=0.5)
    for server in ("ps-0", "ps-1"):
        project.crash(server)
    assert project.exit_code("worker-0") == 0
    for server in ("ps-0", "ps-1"):
        assert project.restarts(server) == 1
        assert '"event": "recovered"' in project.logs(server)
        assert '"event": "restored"' not in project.logs(server)
    assert "restarted" not in project.logs("worker-0")
    assert abs(demo_error(project.logs("worker-0")) - DEMO_RMSE) < CLOSE


def test_nothing_that_tasks_with_certificates_send_can_be_read(
    encrypted_project: Project,
) -> None:
    token = (ROOT / "deploy/compose/token").read_text().strip()
    assert not trained_in_public(encrypted_project, token, *WORDS).words
    for server in ("ps-0", "ps-1"):
        assert encrypted_project.inspect(server, "{{.State.ExitCode}}") == "0"


def test_containers_are_closed_off(project: Project) -> None:
    project.up("--detach", "--wait", "ps-0")
    assert project.inspect("ps-0", "{{.HostConfig.ReadonlyRootfs}}") == "true"
    assert project.inspect("ps-0", "{{.HostConfig.IpcMode}}") == "private"
    assert project.inside("ps-0", "id", "-u").strip() == "10001"
    networks = project.inspect("ps-0", "{{json .NetworkSettings.Networks}}")
    assert "stratagem_cluster" in networks and "bridge" not in networks


def test_a_coordinator_trains_on_worker_servers(project: Project) -> None:
    ended = project.up("--exit-code-from", "chief", "chief")
    assert ended.returncode == 0, ended.stderr
    assert abs(demo_error(ended.stdout) - DEMO_RMSE) < CLOSE
    assert not project.logs("worker-0")


def test_servers_tell_others_on_their_network_what_they_do(project: Project) -> None:
    servers = ("ps-0", "ps-1", "worker-server-0")
    project.up("--detach", "--wait", *servers)
    addresses = [f"{server}:2222" for server in servers]
    told = project.inside("ps-1", "stratagem", "status", "--json", *addresses)
    assert [server["answers"] for server in json.loads(told)["servers"]] == [True] * 3
    read = "print(urllib.request.urlopen('http://ps-0:2224/metrics').read().decode())"
    figures = project.inside("ps-1", "python", "-c", f"import urllib.request; {read}")
    assert 'stratagem_uptime_seconds{server="ps:0"}' in figures

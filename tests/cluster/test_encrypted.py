"""Clusters whose processes know each other by certificates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stratagem as sg
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from stratagem_rpc.certificates.presented import presented, presenting
from tests.certified import certified
from tests.conftest import TOKEN
from tests.psserver.process import serving

pytestmark = pytest.mark.cluster


def test_threads_cannot_have_certificates_of_their_own() -> None:
    with pytest.raises(sg.InvalidArgumentError, match="give processes=True"):
        LocalCluster(tls=True)


@pytest.mark.parametrize("way", ["grpc", "tcp"])
def test_functions_of_a_coordinator_go_on_when_a_primary_is_lost(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", way)
    with LocalCluster(worker_servers=2, replicas=2, processes=True, tls=True) as cluster:
        strategy = sg.ParameterServerStrategy(cluster.cluster_resolver)
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            total = sg.Variable(torch.zeros(2))

        def add() -> None:
            total.assign_add(torch.ones(2))

        for _ in range(2):
            for _ in range(10):
                coordinator.schedule(add)
            coordinator.join()
            cluster.restart("ps", 0, "primary")
        assert total.read_value().tolist() == [20, 20]
    assert presented() is None


@pytest.mark.parametrize("way", ["grpc", pytest.param("tcp", marks=pytest.mark.long)])
def test_functions_show_the_certificate_that_their_worker_server_was_given(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", way)
    authority, token = certified(tmp_path / "certs"), tmp_path / "token"
    token.write_text(TOKEN)
    given = ("--task", "0", "--token-file", str(token), "--tls")
    (tmp_path / "ps").mkdir()
    (tmp_path / "worker").mkdir()
    with (
        serving(tmp_path / "ps", *given, str(authority.of("ps:0"))) as server,
        serving(
            tmp_path / "worker",
            *given,
            str(authority.of("worker:0")),
            module="stratagem_worker.__main__",
        ) as worker,
        presenting(authority.of("chief:0")),
    ):
        jobs = {"ps": [server.address], "worker": [worker.address], "chief": ["127.0.0.1:0"]}
        spec = sg.ClusterSpec(jobs)
        resolver = SimpleClusterResolver(spec, task_type="chief", task_id=0)
        resolver.cluster_token = TOKEN
        strategy = sg.ParameterServerStrategy(resolver)
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            total = sg.Variable(torch.zeros(2))

        def add() -> None:
            total.assign_add(torch.ones(2))

        coordinator.schedule(add).fetch()
        assert total.read_value().tolist() == [1, 1]


TRAINING = """
import os
import subprocess
import sys
import torch
import stratagem as sg

strategy = sg.ParameterServerStrategy()
with strategy.scope():
    model = torch.nn.Linear(3, 1)
    optimizer = sg.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()

for _ in range(3):
    strategy.run(step)
if "RUN" in os.environ:
    shown = {}
    for command in ("status", "doctor"):
        asked = [sys.executable, "-m", "stratagem_deploy.cli", command, "--json"]
        environment = {**os.environ, "TF_CONFIG": "", "STRATAGEM_TLS": ""}
        del environment["STRATAGEM_TOKEN_FILE"]
        asked += ["--run", str(os.getppid())]
        shown[command] = subprocess.run(asked, env=environment, capture_output=True).returncode
    print(shown, os.environ["STRATAGEM_TLS"].rpartition("/")[2])
"""


def test_a_script_is_run_with_certificates_and_commands_find_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [
        sys.executable,
        "-m",
        "stratagem_deploy.cli",
        "run",
        "--tls",
        "--json",
        "--ps",
        "2",
        "--workers",
        "2",
        str(script),
    ]
    finished = subprocess.run(
        command, env={**os.environ, "RUN": "1"}, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    first, *lines = map(json.loads, finished.stdout.splitlines())
    assert Path(first["tls"]).name == "operator"
    said = [line["line"] for line in lines if line.get("task", "").startswith("worker")]
    assert "{'status': 0, 'doctor': 0} worker-0" in said
    assert "{'status': 0, 'doctor': 0} worker-1" in said

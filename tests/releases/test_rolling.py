"""Clusters whose processes are of two releases, while they are replaced one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stratagem
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem_deploy.cli import app
from stratagem_proto.errors import ProtocolVersionError
from stratagem_proto.protocol import PROTOCOL_VERSION, release
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_OPERATOR
from stratagem_rpc.channel import Deadlines
from stratagem_storage.checkpoint.folder import open_checkpoint
from stratagem_storage.stores.places import shared_place
from tests.conftest import TOKEN
from tests.releases.former import FORMER, PATIENCE, Rolling, rolling

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

# Each step adds the same to each row, so that the rows say how many were applied.
SCRIPT = """
import sys
from pathlib import Path
import torch
import stratagem
folder, number = Path(__file__).parent, sys.argv[1]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = stratagem.nn.Embedding(64, 4)
        self.scale = torch.nn.Parameter(torch.zeros(4))

    def forward(self, rows):
        return self.table(rows).sum() + self.scale.sum()

with stratagem.ParameterServerStrategy() as strategy:
    index = strategy.cluster_resolver.task_id
    with strategy.scope():
        model = Model()
        counter = stratagem.Variable(torch.tensor(0), trainable=False, name="counter")
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=2.0 ** -10))
    rows = torch.arange(64)

    def step():
        optimizer.zero_grad()
        model(rows).backward()
        optimizer.step()

    counted = 0
    while not (folder / f"end-{index}").exists():
        strategy.run(step)
        counter.assign_add(1)
        counted += 1
        (folder / f"counted-{number}").write_text(str(counted))
    if index == 0:
        strategy.save(folder / "saved", extra={"steps": int(counter.numpy())})
    strategy.run(lambda: model(rows))
    print("applied", int(counter.numpy()), float(-model.scale.detach()[0]) * 2 ** 10)
"""


def servers_of(cluster: Rolling) -> stratagem.Servers:
    return stratagem.Servers(lambda: cluster.addresses, Identity(ROLE_OPERATOR, token=TOKEN))


def replace_server(cluster: Rolling, task: int, to: str) -> None:
    """Does what the page tells operators."""
    servers_of(cluster).drain(task, PATIENCE)
    cluster.stop_server(task)
    cluster.start_server(task, to)
    cluster.await_more()
    servers_of(cluster).add(cluster.addresses[task], PATIENCE)
    cluster.await_more()


def told(cluster: Rolling) -> str:
    """What `stratagem status` says."""
    environment = {
        "TF_CONFIG": json.dumps({"cluster": cluster.cluster}),
        "STRATAGEM_TOKEN_FILE": str(cluster.token_file),
        "COLUMNS": "250",
    }
    shown = CliRunner().invoke(app, ["status"], env=environment)
    assert shown.exit_code == 0, shown.output
    return " ".join(shown.output.split())


@pytest.mark.parametrize("begins", ["former", "present"])
def test_each_process_is_replaced_by_one_of_the_other_release_while_all_train(
    begins: str, tmp_path: Path
) -> None:
    other = {"former": "present", "present": "former"}[begins]
    with rolling(tmp_path, SCRIPT, "--arbiter", f"file:{tmp_path / 'arbiter'}") as cluster:
        for task in (0, 1):
            cluster.start_server(task, begins)
        for index in (0, 1):
            cluster.start_worker(index, begins)
        assert "Releases are mixed" not in told(cluster)
        for task in (0, 1):
            replace_server(cluster, task, other)
        own = {"former": FORMER, "present": release()}
        assert f"{own[begins]} (worker:0, worker:1)" in told(cluster)
        assert f"{own[other]} (ps:0, ps:1)" in told(cluster)
        for index in (1, 0):
            cluster.stop_worker(index)
            cluster.start_worker(index, other)
            cluster.await_more()
        assert "Releases are mixed" not in told(cluster)
        cluster.stop_worker(1)
        output = cluster.stop_worker(0)
        assert f"applied {cluster.counted()} {cluster.counted():.1f}" in output


@pytest.mark.parametrize("oldest", [PROTOCOL_VERSION, PROTOCOL_VERSION + 1])
def test_a_server_of_a_later_contract_serves_whoever_speaks_a_version_that_it_knows(
    oldest: int, tmp_path: Path
) -> None:
    latest = PROTOCOL_VERSION + 1
    with rolling(tmp_path, "") as cluster:
        cluster.releases.let_former_speak(oldest, latest)
        cluster.start_server(0, "former")
        chief = Identity(ROLE_CHIEF, "worker", token=TOKEN)
        connection = Connection(0, cluster.addresses[0], chief, Deadlines(connect=PATIENCE))
        if oldest <= PROTOCOL_VERSION:
            assert connection.open().identifier
        else:
            with pytest.raises(ProtocolVersionError) as caught:
                connection.open()
            assert f"version {latest} (stratagem {FORMER})" in caught.value.message
            assert f"(stratagem {release()})" in caught.value.message
        connection.close()


def test_a_log_and_a_checkpoint_go_from_one_release_to_the_other_and_back(tmp_path: Path) -> None:
    (state := tmp_path / "state").mkdir()
    options = "--durability", "log", "--durability-folder", str(state)
    with rolling(tmp_path, SCRIPT, *options) as cluster:
        for task in (0, 1):
            cluster.start_server(task, "former")
        cluster.start_worker(0, "former")
        for to in ("present", "former"):
            for task in (0, 1):
                cluster.stop_server(task)
                cluster.start_server(task, to)
                cluster.await_more()
        output = cluster.stop_worker(0)
        assert f"applied {cluster.counted()} {cluster.counted():.1f}" in output
        # The present release reads the checkpoint of the last one, whose logs it has continued.
        saved = open_checkpoint(shared_place(tmp_path / "saved")).index
        assert saved.extra == {"steps": cluster.counted()}


def test_a_server_and_its_backup_are_replaced_one_after_the_other(tmp_path: Path) -> None:
    arbiter = f"file:{tmp_path / 'arbiter'}"
    with rolling(tmp_path, SCRIPT, "--arbiter", arbiter, has_backup=True) as cluster:
        for number in (0, 1):
            cluster.start_server(number, "former")
        cluster.await_backup()
        cluster.start_worker(0, "former")
        for to in ("present", "former"):
            for number in (0, 1):
                cluster.stop_server(number)
                cluster.start_server(number, to)
                cluster.await_backup()
                cluster.await_more()
        output = cluster.stop_worker(0)
        assert f"applied {cluster.counted()} {cluster.counted():.1f}" in output

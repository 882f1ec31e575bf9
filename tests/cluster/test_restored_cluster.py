"""Clusters that begin with a checkpoint."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stratagem
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.cli import app
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.deploy.processes.process_tree import python

SCRIPT = """
import json, sys
import torch
import stratagem

strategy = stratagem.ParameterServerStrategy()
with strategy.scope():
    module = torch.nn.ParameterList([torch.zeros(2), torch.zeros(3)])
optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=1))

def step():
    for parameter in module:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

strategy.run(step)
strategy.save(sys.argv[1])
steps = [one["step"].item() for one in optimizer.state_dict()["state"].values()]
print(json.dumps([steps, [p.tolist() for p in module.state_dict().values()]]))
"""


def count(resolver: ClusterResolver, root: Path) -> list[float]:
    """Adds 1 to a variable on each server, and saves them."""
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            counters = [stratagem.Variable(0.0, name=f"on{s}") for s in range(2)]
        for counter in counters:
            counter.assign_add(1.0)
        strategy.save(root)
        return [float(counter.numpy()) for counter in counters]


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param(False, id="threads"),
        pytest.param(True, id="processes", marks=[pytest.mark.cluster, pytest.mark.long]),
    ],
)
def test_a_local_cluster_goes_on_from_a_checkpoint(processes: bool, tmp_path: Path) -> None:
    """The first one finds none; a server that is started again finds the latest."""
    root = tmp_path / "run"
    with LocalCluster(ps=2, processes=processes, restore=root) as cluster:
        assert cluster.run(count, root) == [[1.0, 1.0]]
        assert cluster.run(count, root) == [[2.0, 2.0]]
        for server in range(2):
            cluster.restart("ps", server)
        assert cluster.run(count, root) == [[3.0, 3.0]]
    with LocalCluster(ps=2, processes=processes, restore=root) as cluster:
        assert cluster.run(count, root) == [[4.0, 4.0]]


@pytest.mark.parametrize("ps", [1, 3])
def test_another_number_of_servers_is_refused_with_the_way_out(ps: int, tmp_path: Path) -> None:
    """Fewer would leave parts out, and the variables in them would begin anew."""
    with LocalCluster(ps=2) as cluster:
        cluster.run(count, tmp_path)
    with pytest.raises(
        stratagem.FailedPreconditionError,
        match=rf"{ps} parameter servers cannot begin.* 2 servers wrote it.*strategy\.restore",
    ):
        LocalCluster(ps=ps, restore=tmp_path)
    script = tmp_path / "script.py"
    script.touch()
    options = ["--ps", str(ps), "--restore", str(tmp_path), str(script)]
    refused = CliRunner().invoke(app, ["run", *options])
    assert refused.exit_code == 2
    assert "2 servers wrote it" in " ".join(refused.output.replace("│", "").split())


def test_a_folder_without_a_checkpoint_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first save it is what is meant; else the name is misspelt."""
    with LocalCluster(ps=1, restore=tmp_path / "nowhere"):
        pass
    (said,) = (each.message for each in caplog.records if "nowhere" in each.message)
    assert said == f"no checkpoint is in '{tmp_path}/nowhere'; servers begin with nothing"


def test_a_file_is_refused_by_its_name(tmp_path: Path) -> None:
    """A program without a cluster saves one, which has no parts of servers."""
    file = tmp_path / "saved.safetensors"
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        stratagem.Variable(1.0, name="one")
    strategy.save(file)
    with pytest.raises(
        stratagem.FailedPreconditionError,
        match=rf"{file}': no servers.*\. Begin without",
    ):
        LocalCluster(ps=1, restore=file)


def test_a_server_of_which_a_checkpoint_has_no_part_does_not_begin(tmp_path: Path) -> None:
    with LocalCluster(ps=2) as cluster:
        cluster.run(count, tmp_path)
    with pytest.raises(
        stratagem.FailedPreconditionError,
        match="nothing of /job:ps/task:2: 2 servers wrote it",
    ):
        ParameterServer(ServerSettings(task=2, restore=str(tmp_path))).start()


def test_who_has_no_servers_cannot_restore(tmp_path: Path) -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="has no use for"):
        LocalCluster(ps=0, workers=2, restore=tmp_path)
    script = tmp_path / "script.py"
    script.touch()
    options = ["--ps", "0", "--restore", str(tmp_path), str(script)]
    refused = CliRunner().invoke(app, ["run", *options])
    assert refused.exit_code == 2
    assert "--restore needs servers" in refused.output


def test_a_run_does_not_take_the_certificates_of_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TLS", "certs/worker-0")
    script = tmp_path / "script.py"
    script.touch()
    refused = CliRunner().invoke(app, ["run", str(script)])
    assert refused.exit_code == 2
    assert "the certificates of one task" in " ".join(refused.output.replace("│", "").split())


@pytest.mark.cluster
@pytest.mark.long
def test_a_script_that_is_run_again_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    script, root = tmp_path / "script.py", str(tmp_path / "run")
    script.write_text(SCRIPT)
    for run in (1.0, 2.0):
        command = ["run", "--ps", "2", "--restore", root, str(script), root]
        module = ("-m", "stratagem_deploy.cli")
        with python(*module, *command, output=subprocess.PIPE) as process:
            output, errors = process.communicate()
        assert process.returncode == 0, errors
        steps, values = json.loads(output)
        assert steps == [run, run]
        # Adam takes steps of its learning rate while gradients stay the same.
        assert values == [pytest.approx([-run] * 2), pytest.approx([-run] * 3)]

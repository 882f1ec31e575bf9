"""Clusters whose servers have the policy that the page on securing shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stratagem as sg
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import PermissionDeniedError
from stratagem_psserver.cli import ServerOptions

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs" / "securing.md"
SECONDS = 120

SCRIPT = """
import stratagem as sg
import torch

strategy = sg.ParameterServerStrategy()
with strategy.scope():
    items = sg.Variable(torch.zeros(2), name="items.weight")
assert items.read_value().shape == (2,)
items.assign_add(torch.ones(2))
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The example of the page, in a file."""
    (block,) = re.findall(r"^```\n(# policy\.txt.*?)^```", PAGE.read_text(), re.DOTALL | re.M)
    path = tmp_path / "policy.txt"
    path.write_text(block)
    return path


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(8, 2)
        self.items = torch.nn.Embedding(8, 2)

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = self.users.weight.sum() + self.items.weight.sum()
        return loss


def train(resolver: ClusterResolver) -> list[str]:
    """Steps each part of a model by an optimizer of its own; returns what was refused."""
    partitioner = sg.partitioners.FixedShardsPartitioner(2)
    strategy = sg.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    with strategy.scope():
        model = Model()
        steps = sg.DistributedOptimizer(torch.optim.Adam(model.users.parameters()))
        others = sg.DistributedOptimizer(torch.optim.SGD(model.items.parameters(), lr=1.0))
    refused = []

    def step() -> None:
        model().backward()
        steps.step()

    def step_others() -> None:
        model().backward()
        others.step()

    for one in (step, step_others):
        try:
            strategy.run(one)
        except PermissionDeniedError as error:
            refused.append(error.variable)
    return refused


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param(False, id="threads"),
        pytest.param(True, id="processes", marks=pytest.mark.long),
    ],
)
def test_a_worker_updates_what_the_policy_lets_it_and_the_chief_all(
    policy: Path, processes: bool
) -> None:
    with LocalCluster(ps=2, workers=2, processes=processes, policy=policy) as cluster:
        of_chief, of_other = cluster.run(train)
    assert of_chief == []
    assert len(of_other) == 1
    assert of_other[0].startswith("items.weight")


@pytest.mark.long
def test_a_script_is_told_what_its_worker_may_not(tmp_path: Path, policy: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ("-m", "stratagem_deploy.cli", "run", "--workers", "2", "--policy", str(policy))
    finished = subprocess.run(
        [sys.executable, *command, str(script)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert finished.returncode == 1, finished.stderr
    told = " ".join(finished.stderr.split())
    assert "PermissionDeniedError" in told
    assert f"the policy {str(policy)!r} lets it do other things (lines 2, 3)" in told
    assert "and not assign 'items.weight'" in told


def test_a_policy_with_a_fault_starts_no_server_and_no_run(tmp_path: Path, policy: Path) -> None:
    policy.write_text("worker/1 may raed **\n")
    told = r"policy.txt', line 1: 'raed' is nothing that anybody may do; write some of read,"
    with pytest.raises(sg.InvalidArgumentError, match=told):
        LocalCluster(policy=policy)
    for command in (("stratagem_deploy.cli", "run", __file__), ("stratagem_psserver",)):
        module, *others = command
        line = [sys.executable, "-m", module, *others[:1], "--policy", str(policy), *others[1:]]
        finished = subprocess.run(
            line, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert finished.returncode == 2
        assert "'raed' is nothing" in " ".join(finished.stderr.split())


def test_a_policy_is_of_use_to_servers_alone(policy: Path) -> None:
    with pytest.raises(sg.InvalidArgumentError, match=r"has no use for '.*policy\.txt'"):
        LocalCluster(ps=0, workers=1, policy=policy)


def test_a_server_takes_its_policy_from_the_environment_too(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_POLICY", str(policy))
    given = ServerOptions.read({}).settings().policy
    assert given is not None
    assert [rule.line for rule in given.rules] == [2, 3, 4]

"""A worker of two processes, which torchrun starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import stratagem
from examples import torchrun
from stratagem import config
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import import_path

EXAMPLE = Path(torchrun.__file__)


def two_replicas(resolver: ClusterResolver) -> dict[str, Tensor]:
    """The same training by one process with two replicas."""
    features, digits = torchrun.images()
    strategy = stratagem.ParameterServerStrategy(resolver, num_replicas_per_worker=2)
    with strategy:
        with strategy.scope():
            model = torchrun.network()
        adam = torch.optim.Adam(model.parameters(), torchrun.RATE)
        optimizer = stratagem.DistributedOptimizer(adam)

        def step(batch: Tensor) -> None:
            context = stratagem.get_replica_context()
            assert context is not None
            mine = batch[context.replica_id_in_sync_group :: 2]
            optimizer.zero_grad()
            functional.cross_entropy(model(features[mine]), digits[mine]).backward()
            optimizer.step()

        for batch in torchrun.batches(0):
            strategy.run(step, args=(batch,))
        strategy.refresh()
        return {name: value.clone() for name, value in model.state_dict().items()}


def launched(resolver: ClusterResolver, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the example by torchrun as the worker of a resolver."""
    task = {"type": resolver.task_type, "index": resolver.task_id}
    described = {"cluster": resolver.cluster_spec().as_dict(), "task": task}
    token = folder / "token"
    token.write_text(resolver.cluster_token or "")
    token.chmod(0o600)
    environment = {
        "TF_CONFIG": json.dumps(described),
        "STRATAGEM_TOKEN_FILE": str(token),
        **import_path(),
        # Sums of several threads have other last bits than those of one.
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node=2", EXAMPLE],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_processes_train_to_the_bytes_of_two_replicas(tmp_path: Path) -> None:
    config.set_logical_cpus(2)
    with LocalCluster() as cluster:
        (expected,) = cluster.run(two_replicas)
    with LocalCluster() as cluster:
        run = launched(cluster.resolver("worker", 0), tmp_path)
    assert run.returncode == 0, run.stderr
    accuracy, _, _ = run.stdout.partition(" %")
    assert float(accuracy) > 90
    trained = load_file(tmp_path / "runs/torchrun/model.safetensors")
    for name, value in expected.items():
        assert torch.equal(trained[name], value), name

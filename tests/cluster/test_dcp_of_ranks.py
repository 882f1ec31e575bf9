"""Checkpoints that several ranks of torch wrote together."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from tests.checkpoints import load_from
from tests.deploy.checkpoints.commands import call
from tests.deploy.processes.process_tree import python

pytestmark = pytest.mark.cluster

# All is written by then: threads of torch may abort a process that ends otherwise.
SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

folder, rank = sys.argv[1], int(sys.argv[2])
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(10.0).reshape(5, 2)
state = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "b": torch.ones(3)}
dcp.save({"model": state}, checkpoint_id=folder + "/dcp")
dist.destroy_process_group()
os._exit(0)
"""


def test_the_parts_of_all_ranks_are_put_together(tmp_path: Path) -> None:
    ranks = [
        python("-c", SCRIPT, str(tmp_path), str(rank), output=subprocess.PIPE) for rank in range(2)
    ]
    with ranks[0] as first, ranks[1] as second:
        for rank in (first, second):
            _, errors = rank.communicate()
            assert rank.returncode == 0, errors
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    options = ["--format", "dcp", "--prefix", "model", "--servers", "2"]
    call("import", tmp_path / "dcp", tmp_path / "run", *options)
    found = load_from(tmp_path / "run")
    assert torch.equal(found["w"], torch.arange(10.0).reshape(5, 2))
    assert torch.equal(found["b"], torch.ones(3))

"""What each worker reads, and what is said where a framework is missing."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from torch.utils.data import TensorDataset

from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.frameworks import part
from tests.client.clusters import running


def test_workers_read_equally_many_examples_and_none_twice() -> None:
    dataset = TensorDataset(torch.arange(11))
    with running(1, num_workers=3) as cluster:
        found = []
        for worker in range(3):
            with cluster.strategy(worker) as strategy:
                mine = part(strategy, dataset)
                found.append([int(mine[number][0]) for number in range(len(mine))])
    assert found == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_a_chief_reads_the_first_part() -> None:
    places = {"ps": ["a.test:1"], "chief": ["b.test:1"], "worker": ["c.test:1"]}
    dataset = TensorDataset(torch.arange(4))
    found = {}
    for task in ("chief", "worker"):
        resolver = SimpleClusterResolver(ClusterSpec(places), task_type=task, task_id=0)
        found[task] = [*part(ParameterServerStrategy(resolver), dataset).indices]
    assert found == {"chief": [0, 2], "worker": [1, 3]}


def test_without_a_cluster_everything_is_read() -> None:
    assert len(part(ParameterServerStrategy(), TensorDataset(torch.arange(5)))) == 5


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [
        ("accelerate", "accelerate"),
        ("transformers", "transformers"),
        ("lightning", "lightning.pytorch.strategies"),
    ],
)
def test_without_a_framework_it_says_what_to_install(
    adapter: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"stratagem.frameworks.{adapter}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'stratagem\[{adapter}\]'"):
        import_module(f"stratagem.frameworks.{adapter}")

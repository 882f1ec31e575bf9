"""What each worker reads, and what is said where a framework is missing."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import TensorDataset

from stratagem import ClusterSpec, FailedPreconditionError, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.frameworks import part
from stratagem.frameworks._handover import gathered
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
        ("keras", "keras"),
        ("lightning", "lightning.pytorch.strategies"),
        ("torchmetrics", "torchmetrics"),
    ],
)
def test_without_a_framework_it_says_what_to_install(
    adapter: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"stratagem.frameworks.{adapter}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'stratagem\[{adapter}\]'"):
        import_module(f"stratagem.frameworks.{adapter}")


def test_keras_on_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", elsewhere)  # has all that is asked for
    monkeypatch.delitem(sys.modules, "stratagem.frameworks.keras", raising=False)
    with pytest.raises(ImportError, match="set KERAS_BACKEND=torch"):
        import_module("stratagem.frameworks.keras")


def test_each_worker_gets_what_all_have_gathered() -> None:
    own = [
        [torch.tensor(2.5, dtype=torch.float64), torch.tensor([], dtype=torch.int64)],
        [torch.arange(3000).reshape(3, 1000), torch.tensor([True, False])],
        [torch.ones(2, dtype=torch.bfloat16), torch.zeros(0, 4)],
    ]

    def gather(strategy: ParameterServerStrategy, worker: int) -> list[list[torch.Tensor]]:
        return [gathered(strategy, each) for each in own[worker]]

    with running(2, num_workers=3) as cluster:
        for found in cluster.run(gather):
            for turn, tensors in enumerate(found):
                for worker, tensor in enumerate(tensors):
                    wanted = own[worker][turn]
                    assert tensor.dtype == wanted.dtype
                    assert torch.equal(tensor, wanted)


def test_what_is_gathered_later_is_never_what_was_gathered_before() -> None:
    def gather(strategy: ParameterServerStrategy, worker: int) -> list[list[int]]:
        found = [gathered(strategy, torch.tensor([turn, worker])) for turn in range(20)]
        return [[int(each[0]) for each in tensors] for tensors in found]

    with running(1, num_workers=2) as cluster:
        for found in cluster.run(gather):
            assert found == [[turn, turn] for turn in range(20)]


def test_a_worker_that_is_started_again_does_not_gather_what_others_have_now() -> None:
    def gather(strategy: ParameterServerStrategy) -> None:
        for _ in range(3):
            gathered(strategy, torch.tensor(0))

    with running(1, num_workers=2) as cluster, cluster.strategy(0) as first:
        with cluster.strategy(1) as second, ThreadPoolExecutor(2) as threads:
            list(threads.map(gather, (first, second)))
        with (
            cluster.strategy(1) as again,
            pytest.raises(FailedPreconditionError, match="started again"),
        ):
            gathered(again, torch.tensor(1))


def test_alone_a_worker_gathers_its_own() -> None:
    assert gathered(ParameterServerStrategy(), torch.tensor(3)) == [torch.tensor(3)]

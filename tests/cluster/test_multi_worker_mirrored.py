"""Workers without servers as processes: meeting, training, and losing each other."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    ClusterSpec,
    ConfigProto,
    DistributedOptimizer,
    MultiWorkerMirroredStrategy,
    Variable,
    config,
)
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.links import Links
from stratagem._multi_worker.meeting import WorkerPlace
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import import_path
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from tests.cluster.two_workers import on_two_workers, strategy_of, worker

pytestmark = pytest.mark.cluster

Strategy = MultiWorkerMirroredStrategy


@pytest.fixture
def address() -> Iterator[str]:
    """A free address of this machine."""
    reserved = ReservedAddress()
    yield str(reserved)
    reserved.close()


def resolver(address: str, index: int = 0, job: str = "worker") -> ClusterResolver:
    """Return how a task of a cluster of two workers sees it."""
    spec = ClusterSpec({"worker": [address, "127.0.0.1:1"], "ps": ["127.0.0.1:2"]})
    return SimpleClusterResolver(spec, task_type=job, task_id=index)


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.spec("STR-4")
def test_making_a_strategy_connects_nothing(address: str) -> None:
    given = resolver(address, 1)
    strategy = MultiWorkerMirroredStrategy(given)
    assert strategy.cluster_resolver is given
    assert strategy.num_replicas_in_sync == 2
    assert strategy.run(lambda: 3) == 3
    filters = ConfigProto(device_filters=["/job:ps"], isolate_session_state=True)
    updated = strategy.update_config_proto(filters)
    own = ["/job:worker/replica:0/task:1"]
    expected = ConfigProto(device_filters=own)
    expected.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    assert updated == expected


@pytest.mark.parametrize(
    "alone",
    [
        None,
        SimpleClusterResolver(ClusterSpec({})),
        SimpleClusterResolver(ClusterSpec({"worker": ["a:1"]}), "", "worker", 0),
        resolver("a:1", 0, "evaluator"),
    ],
)
def test_a_worker_without_others_needs_nobody(alone: ClusterResolver | None) -> None:
    strategy = MultiWorkerMirroredStrategy(alone)
    with strategy.scope():
        module = nn.Linear(2, 1)
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    before = module.bias.item()

    def step() -> torch.Tensor:
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return torch.tensor(5.0)

    assert strategy.reduce("sum", strategy.run(step), axis=None) == 5.0
    assert module.bias.item() == pytest.approx(before - 1.0)
    assert strategy.extended.should_checkpoint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (resolver("a:1", 0, "ps"), "ps"),
        (resolver("a:1", 2), "exceeds the maximum id"),
        (SimpleClusterResolver(ClusterSpec({"worker": ["a:1"]})), "task_type"),
    ],
)
def test_a_task_that_does_not_train_is_refused(given: ClusterResolver, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiWorkerMirroredStrategy(given)


def test_options_are_of_their_type() -> None:
    with pytest.raises(TypeError, match="must be CommunicationOptions"):
        MultiWorkerMirroredStrategy(None, "NCCL")  # type: ignore[arg-type]


def test_a_worker_that_does_not_come_is_named(address: str) -> None:
    strategy = strategy_of(resolver(address), seconds=0.3)
    message = r"task:0 waited 0\.3 s .* for /job:worker/replica:0/task:1: start all"
    with pytest.raises(DeadlineExceededError, match=message), strategy.scope():
        Variable(1.0)


def test_a_chief_that_does_not_come_is_named(address: str) -> None:
    strategy = strategy_of(resolver(address, 1), seconds=0.3)
    message = rf"found nobody at {address} in 0\.3 s, where .*task:0 lets"
    with pytest.raises(UnavailableError, match=message):
        strategy.reduce("sum", torch.ones(1), axis=None)


def places(address: str) -> list[WorkerPlace]:
    """Return the places of two workers that meet at an address."""
    return [WorkerPlace(("first", "second"), n, address, n == 0) for n in (0, 1)]


def test_a_worker_that_does_not_take_part_is_named(address: str) -> None:
    first, second = (WorkerGroup(place, 1.0, []) for place in places(address))
    thread = threading.Thread(target=second.agree, args=("The start", []))
    thread.start()
    first.agree("The start", [])
    thread.join()
    message = "first could not finish .* missing: second .*start all workers anew"
    with pytest.raises(DeadlineExceededError, match=message):
        first.agree("What only one does", [])
    with pytest.raises(DeadlineExceededError, match="missing: second"):
        first.agree("Whatever comes later", [])


def test_workers_have_equally_many_replicas(address: str) -> None:
    first, second = (
        WorkerGroup(place, 5.0, [f"{place.rank + 1} replicas on CPU"]) for place in places(address)
    )
    message = "first has 1 replicas on CPU, second has 2 replicas on CPU"
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(second.agree, "The start", [])
        for call in (partial(first.agree, "The start", []), answer.result):
            with pytest.raises(InvalidArgumentError, match=message):
                call()


def test_a_copy_of_a_strategy_connects_by_itself() -> None:
    def reduce(strategy: Strategy) -> Any:
        value = torch.tensor(1.0 + worker(strategy))
        twin = copy.deepcopy(strategy)
        return [s.reduce("sum", value, axis=None).item() for s in (strategy, twin)]

    assert on_two_workers(reduce, cpus=1) == [[3.0, 3.0]] * 2


def train(resolver: ClusterResolver, steps: int) -> Any:
    """Return the bytes of all parameters after some steps on two logical CPUs."""
    config.set_logical_cpus(2)
    torch.manual_seed(resolver.task_id or 0)
    strategy = MultiWorkerMirroredStrategy(resolver)
    with strategy.scope():
        module = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1))
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters()))

    def step(rows: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (module(rows).squeeze(1) - rows.sum(1)).pow(2)
        loss.mean().backward()
        optimizer.step()
        return loss.detach()

    generator = torch.Generator().manual_seed(1)
    batches = [torch.rand(16, 20, generator=generator) for _ in range(steps)]
    losses = [
        strategy.reduce("mean", strategy.run(step, (rows,)), axis=0).item()
        for rows in strategy.experimental_distribute_dataset(batches)
    ]
    return losses, [p.detach().numpy().tobytes() for p in module.parameters()]


def test_processes_train_to_the_same_bits() -> None:
    with LocalCluster(ps=0, workers=2, processes=True) as cluster:
        (losses, first), (others, second) = cluster.run(train, 10)
    assert first == second
    assert losses == others
    assert losses[-1] < losses[0]


PROGRAM = """
import os, torch
from stratagem import MultiWorkerMirroredStrategy
torch.distributed.init_process_group("gloo")  # the program's own business
strategy = MultiWorkerMirroredStrategy()
value = torch.tensor(1.0 + strategy.extended._first_replica_id)
print(strategy.reduce("sum", value, axis=None).item(), flush=True)
if os.environ["RANK"] == "1":
    os._exit(9)
strategy.reduce("sum", value, axis=None)
"""


def started(program: str, address: str) -> list[subprocess.Popen[str]]:
    """Start two workers in the environment of torchrun."""
    host, port = address.split(":")
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **import_path(), **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_the_environment_of_torchrun_will_do_and_a_dead_worker_is_named(
    address: str,
) -> None:
    processes = started(PROGRAM, address)
    (out, errors), (other, _) = (process.communicate() for process in processes)
    assert out == other == "3.0\n"
    assert "UnavailableError" in errors or "AbortedError" in errors
    assert "missing: /job:worker/replica:0/task:1 (" in errors


# The store of the chief answers nobody once its process is stopped.
STOPPED = """
import os, signal, torch
from stratagem import CommunicationOptions, MultiWorkerMirroredStrategy
strategy = MultiWorkerMirroredStrategy(
    communication_options=CommunicationOptions(timeout_seconds=10.0)
)
value = torch.tensor(1.0 + strategy.extended._first_replica_id)
print(strategy.reduce("sum", value, axis=None).item(), flush=True)
if os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGSTOP)
strategy.reduce("sum", value, axis=None)
"""


def test_a_chief_that_is_stopped_is_named(address: str) -> None:
    chief, other = started(STOPPED, address)
    try:
        _, errors = other.communicate(timeout=120)
    finally:
        chief.kill()
        chief.communicate()
    assert "DeadlineExceededError" in errors
    assert "missing: /job:worker/replica:0/task:0, at whose address the workers meet" in errors
    assert "waits for /job:worker/replica:0/task:0, at whose address the workers meet" in errors


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_tensors_on_gpus_go_by_nccl(address: str) -> None:
    links = Links(WorkerPlace(("only",), 0, address, hosts_meeting=True), 60.0)
    rows = torch.arange(6.0, device="cuda").reshape(3, 2)
    assert torch.equal(links.sums([rows, rows.int()], 0)[0], rows)
    assert torch.equal(links.joined(rows, [3])[0], rows)
    assert torch.equal(links.spread([rows])[0], rows)

"""Dense parameters that workers all-reduce, beside tables on servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    ClusterSpec,
    DistributedOptimizer,
    FailedPreconditionError,
    HybridOptimizer,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from tests.client.clusters import Cluster, running

ROWS, WIDTH, STEPS = 40, 8, 6
OPTIMIZERS: Sequence[Callable[[Any], torch.optim.Optimizer]] = (
    torch.optim.AdamW,
    torch.optim.Adagrad,
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    torch.optim.NAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
)


class Clicks(nn.Module):
    """A table, and a tower over its rows."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = stratagem.nn.Embedding(ROWS, WIDTH)
        self.tower = nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tower(self.table(rows)).squeeze(-1)
        return found


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * worker + step)
    rows = torch.randint(ROWS, (32,), generator=generator)
    return rows, (rows % 3 == 0).float()


def loss_of(model: nn.Module, worker: int, step: int) -> torch.Tensor:
    rows, clicked = batch(worker, step)
    return nn.functional.binary_cross_entropy_with_logits(model(rows), clicked)


def on_loopback(cluster: Cluster) -> Cluster:
    """The same, whose workers are on this machine."""
    workers = [f"127.0.0.1:{index + 1}" for index in range(cluster.num_workers)]
    cluster.spec = ClusterSpec({"ps": cluster.servers, "worker": workers})
    return cluster


@contextmanager
def cluster_of(num_workers: int) -> Iterator[Cluster]:
    with running(2, num_workers) as cluster:
        yield on_loopback(cluster)


class Trainer:
    """A worker's model and optimizer."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        worker: int,
        dense: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam,
        is_hybrid: bool = True,
        width: int = 16,
    ) -> None:
        self.strategy, self.worker = strategy, worker
        with strategy.scope():
            self.model = Clicks(width)
        tables = DistributedOptimizer(torch.optim.Adagrad(self.model.table.parameters(), lr=0.1))
        self.tables = tables
        inner = dense(self.model.tower.parameters())
        if is_hybrid:
            self.optimizers: Sequence[torch.optim.Optimizer] = [HybridOptimizer(inner, tables)]
        else:
            self.optimizers = [DistributedOptimizer(inner), tables]

    @property
    def hybrid(self) -> HybridOptimizer:
        (found,) = self.optimizers
        assert isinstance(found, HybridOptimizer)
        return found

    def step(self, step: int) -> float:
        def replica_step() -> float:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = loss_of(self.model, self.worker, step)
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
            return loss.item()

        found: float = self.strategy.run(replica_step)
        return found

    def tower(self) -> torch.Tensor:
        return torch.cat([one.detach().reshape(-1) for one in self.model.tower.parameters()])


def test_one_worker_comes_to_the_losses_of_servers_that_step_all() -> None:
    losses = []
    for is_hybrid in (True, False):
        with cluster_of(1) as cluster, cluster.strategy() as strategy:
            trainer = Trainer(strategy, 0, is_hybrid=is_hybrid)
            losses.append([trainer.step(step) for step in range(20)])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    assert losses[0][-1] < losses[0][0]


DATA_PARALLEL = """
import sys
import torch
from torch import distributed, nn
from tests.client.parameter_server.test_hybrid import LAYERS, STEPS, tower, tower_loss

rank, meeting, found = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
model = tower()
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(STEPS):
    optimizer.zero_grad()
    tower_loss(parallel, rank, step).backward()
    optimizer.step()
torch.save([one.detach() for one in model.parameters()], f"{found}{rank}")
distributed.destroy_process_group()
"""
LAYERS = 3


def tower() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))
    )


def tower_loss(model: nn.Module, worker: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * worker + step)
    inputs = torch.randn(16, WIDTH, generator=generator).to(next(model.parameters()).device)
    found: torch.Tensor = (model(inputs) - inputs.flip(0)).square().mean()
    return found


def test_two_workers_come_to_the_bytes_of_data_parallel_training(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", DATA_PARALLEL, str(rank), f"{tmp_path}/meet", f"{tmp_path}/"]
        )
        for rank in range(2)
    ]
    assert [one.wait(120) for one in started] == [0, 0]
    initial = tower().state_dict()

    def program(strategy: ParameterServerStrategy, worker: int) -> list[torch.Tensor]:
        with strategy.scope():
            model = tower()
            # Both draw from one generator here, as threads of a process.
            model.load_state_dict(initial)
        optimizer = HybridOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        for step in range(STEPS):
            optimizer.zero_grad()
            tower_loss(model, worker, step).backward()
            optimizer.step()
        return [one.detach() for one in model.parameters()]

    with cluster_of(2) as cluster:
        found = cluster.run(program)
    for rank, own in enumerate(found):
        expected = torch.load(tmp_path / str(rank))
        assert all(torch.equal(one, other) for one, other in zip(own, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_dense_layers_on_gpus_take_the_steps_of_their_mean_gradients() -> None:
    initial = tower().state_dict()

    def program(strategy: ParameterServerStrategy, worker: int) -> list[torch.Tensor]:
        with strategy.scope():
            model = tower()
            model.load_state_dict(initial)
        optimizer = HybridOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))

        def replica_step(step: int) -> None:
            optimizer.zero_grad()
            tower_loss(model, worker, step).backward()
            optimizer.step()

        for step in range(STEPS):
            strategy.run(replica_step, args=(step,))
        assert all(one.is_cuda for one in model.parameters())
        return [one.detach().cpu() for one in model.parameters()]

    model = tower()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([tower_loss(model, worker, step) for worker in range(2)]).mean().backward()
        optimizer.step()
    with cluster_of(2) as cluster:
        for found in cluster.run(program):
            torch.testing.assert_close(found, [*model.parameters()], rtol=1e-3, atol=1e-4)


def test_a_step_sends_servers_the_bytes_of_tables_alone() -> None:
    sent = {}
    for kind in ("hybrid", "tables", "servers"):
        with cluster_of(1) as cluster, cluster.strategy() as strategy:
            trainer = Trainer(strategy, 0, is_hybrid=kind != "servers", width=400)
            if kind == "tables":
                trainer.optimizers = [trainer.tables]
            trainer.step(0)
            before = strategy.traffic()
            for step in range(STEPS):
                trainer.step(step)
            after = strategy.traffic()
        sent[kind] = after.sent_bytes - before.sent_bytes
    # A heartbeat may come in between.
    assert sent["hybrid"] < sent["tables"] + 500
    assert sent["servers"] > 10 * sent["hybrid"]


def test_a_checkpoint_has_the_dense_part_and_the_state_of_its_optimizer(tmp_path: Path) -> None:
    with cluster_of(1) as cluster, cluster.strategy() as strategy:
        trainer = Trainer(strategy, 0)
        for step in range(STEPS):
            trainer.step(step)
        strategy.save(tmp_path)
        expected = [trainer.step(step) for step in range(STEPS, 2 * STEPS)]

    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        trainer = Trainer(strategy, worker)
        strategy.restore(tmp_path)
        # Both have the same batches, so that their mean is the gradient of one.
        trainer.worker = 0
        found = trainer.hybrid.state_dict()["state"]
        assert found[0]["step"] == STEPS
        losses = []
        for step in range(STEPS, 2 * STEPS):
            strategy.barrier()
            losses.append(trainer.step(step))
        return losses

    with cluster_of(1) as cluster:
        (alone,) = cluster.run(program)
    assert alone == expected
    with cluster_of(2) as cluster:
        first, second = cluster.run(program)
    assert first[0] == second[0] == expected[0]


def test_workers_have_the_same_dense_bytes_after_each_step() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[torch.Tensor]:
        trainer, found = Trainer(strategy, worker), []
        for step in range(STEPS):
            trainer.step(step)
            found.append(trainer.tower())
        return found

    with cluster_of(2) as cluster:
        first, second = cluster.run(program)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[-1])


def test_who_has_fewer_steps_has_the_values_of_the_others_once_they_meet() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> torch.Tensor:
        trainer = Trainer(strategy, worker)
        for step in range(STEPS + 5 * worker):
            trainer.step(step)
        if not worker:
            alone.append(trainer.tower())
        strategy.barrier()
        return trainer.tower()

    alone: list[torch.Tensor] = []
    with cluster_of(2) as cluster:
        first, second = cluster.run(program)
    assert torch.equal(first, second)
    assert not torch.equal(first, alone[0])


def test_who_comes_late_begins_with_the_buffers_of_another_worker() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> torch.Tensor:
        with strategy.scope():
            model = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4))
        optimizer = HybridOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        statistics = model[1].running_mean
        assert isinstance(statistics, torch.Tensor)
        statistics.fill_(1.0 + worker)

        def replica_step() -> None:
            optimizer.zero_grad()
            model.eval()
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()

        strategy.run(replica_step)
        strategy.barrier()
        return statistics

    with cluster_of(2) as cluster:
        found = cluster.run(program)
    assert [one.tolist() for one in found] == [[1.0] * 4] * 2


class Counts(torch.optim.Optimizer):
    """Counts for each element in how many steps it had a gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter += (parameter.grad != 0).float()


MOST, SAVED = 12, 5


def counted(
    strategy: ParameterServerStrategy,
    worker: int,
    folder: Path,
    saved: int,
    rolls_back: bool = False,
) -> list[list[float]]:
    """Count each sample in a table and a dense parameter; the first time, end as if killed."""
    samples = 2 * MOST
    with strategy.scope():
        model = nn.Module()
        model.seen = nn.Parameter(torch.zeros(samples))
        table = model.table = stratagem.nn.Embedding(samples, 1)
        nn.init.zeros_(table.weight)
    tables = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    optimizer = HybridOptimizer(Counts([model.seen]), tables)
    run = strategy.resume(folder)
    is_first = not list(folder.iterdir()) or not run.checkpoint

    def replica_step(number: int) -> None:
        optimizer.zero_grad()
        sample = torch.tensor(2 * number + worker)
        assert isinstance(model.seen, nn.Parameter)
        (model.seen[sample] - table(sample).sum()).backward()
        optimizer.step()

    for number in strategy.steps(MOST):
        strategy.run(replica_step, args=(number,))
        if is_first and number == saved and not worker:
            strategy.save(folder)
        if is_first and number == SAVED + 3:
            strategy.barrier("saved")
            if not rolls_back:
                return []
            is_first = False
            strategy.roll_back(folder)
    run.finish()
    strategy.refresh()
    return [model.seen.tolist(), table.weight.detach()[:, 0].tolist()]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("saved", [SAVED, SAVED + 3])
@pytest.mark.parametrize("servers_live", [False, True])
def test_workers_that_were_all_lost_go_on_with_each_sample_once_in_either_part(
    tmp_path: Path, servers_live: bool, saved: int, num_workers: int
) -> None:
    program = partial(counted, folder=tmp_path, saved=saved)
    expected = [1.0 if sample % 2 < num_workers else 0.0 for sample in range(2 * MOST)]
    with cluster_of(num_workers) as first, cluster_of(num_workers) as second:
        assert first.run(program) == [[]] * num_workers
        found = (first if servers_live else second).run(program)
    assert found == [[expected, expected]] * num_workers


def test_workers_that_roll_back_train_on_with_each_sample_once_in_either_part(
    tmp_path: Path,
) -> None:
    with cluster_of(2) as cluster:
        found = cluster.run(partial(counted, folder=tmp_path, saved=SAVED, rolls_back=True))
    assert found == [[[1.0] * 2 * MOST] * 2] * 2


def test_who_finds_behind_resume_that_all_were_lost_does_not_train_on(tmp_path: Path) -> None:
    with cluster_of(1) as cluster:
        assert cluster.run(partial(counted, folder=tmp_path, saved=-1)) == [[]]
        with cluster.strategy() as strategy:
            with strategy.scope():
                model = nn.Module()
                model.seen = nn.Parameter(torch.zeros(2 * MOST))
                table = model.table = stratagem.nn.Embedding(2 * MOST, 1)
            DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
            strategy.resume(tmp_path)
            with pytest.raises(FailedPreconditionError, match=r"before resume\(\)"):
                HybridOptimizer(Counts([model.seen]))


def test_workers_that_were_all_lost_without_a_checkpoint_do_not_train_on(tmp_path: Path) -> None:
    program = partial(counted, folder=tmp_path, saved=-1)
    with cluster_of(2) as cluster:
        assert cluster.run(program) == [[]] * 2
        with pytest.raises(FailedPreconditionError, match="all workers were lost"):
            cluster.run(program)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_state_of_any_optimizer_of_tensors_and_numbers_is_kept(
    make: Callable[[Any], torch.optim.Optimizer], tmp_path: Path
) -> None:
    with cluster_of(1) as cluster, cluster.strategy() as strategy:
        trainer = Trainer(strategy, 0, make)
        for step in range(3):
            trainer.step(step)
        strategy.save(tmp_path)
        expected = [trainer.step(3), trainer.step(4)]
    with cluster_of(1) as cluster, cluster.strategy() as strategy:
        trainer = Trainer(strategy, 0, make)
        strategy.restore(tmp_path)
        assert [trainer.step(3), trainer.step(4)] == expected


def unfreezing(strategy: ParameterServerStrategy, folder: Path, steps: Sequence[int]) -> list[Any]:
    """Train a tower whose first layer is frozen for two steps, and save it after the third."""
    with strategy.scope():
        model = tower()
    model[0].requires_grad_(False)
    optimizer = HybridOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    if steps[0]:
        strategy.restore(folder)
    for step in steps:
        model[0].requires_grad_(step > 1)
        optimizer.zero_grad()
        # Twice, as where gradients are accumulated.
        tower_loss(model, 0, step).backward()
        tower_loss(model, 1, step).backward()
        optimizer.step()
        if step == 2:
            strategy.save(folder)
    return [one.tolist() for one in model.parameters()]


def test_a_layer_that_is_frozen_at_first_is_trained_later_and_saved(tmp_path: Path) -> None:
    found = []
    for steps in (range(5), range(3, 5)):
        with cluster_of(1) as cluster, cluster.strategy() as strategy:
            found.append(unfreezing(strategy, tmp_path, steps))
    assert found[0] == found[1]


def test_a_program_that_is_started_again_goes_on_with_what_was_saved(tmp_path: Path) -> None:
    with cluster_of(1) as cluster:
        with cluster.strategy() as strategy:
            trainer = Trainer(strategy, 0)
            trainer.step(0)
            strategy.save(tmp_path)
            saved = trainer.tower()
        with cluster.strategy() as strategy:
            trainer = Trainer(strategy, 0)
            assert torch.equal(trainer.tower(), saved)
            assert trainer.hybrid.state_dict()["state"][0]["step"] == 1


def test_without_a_cluster_each_part_is_stepped_here() -> None:
    losses = []
    for is_hybrid in (True, False):
        trainer = Trainer(ParameterServerStrategy(), 0, is_hybrid=is_hybrid)
        losses.append([trainer.step(step) for step in range(STEPS)])
    assert losses[0] == losses[1]


def test_what_cannot_be_right_is_refused_by_name() -> None:
    plain, sharded = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(InvalidArgumentError, match="belong to no strategy"):
        HybridOptimizer(torch.optim.SGD(plain.parameters()))
    for parameter in sharded.parameters():
        parameter.device_mesh = "cpu:0"  # type: ignore[attr-defined] # as those have that fully_shard has divided
    with pytest.raises(InvalidArgumentError, match="fully_shard"):
        HybridOptimizer(torch.optim.SGD(sharded.parameters()))
    with pytest.raises(InvalidTypeError, match="DistributedOptimizer"):
        HybridOptimizer(torch.optim.SGD(plain.parameters()), plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="plain torch"):
        HybridOptimizer(DistributedOptimizer(torch.optim.SGD(plain.parameters())))
    with cluster_of(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model, other = Clicks(), nn.Linear(2, 2)
        with pytest.raises(InvalidArgumentError, match="is a table"):
            HybridOptimizer(torch.optim.SGD(model.parameters()))
        with pytest.raises(InvalidArgumentError, match="LBFGS cannot step"):
            HybridOptimizer(torch.optim.LBFGS(other.parameters()))
        optimizer = HybridOptimizer(torch.optim.SGD(model.tower.parameters()))
        with pytest.raises(FailedPreconditionError, match="one all dense parameters"):
            HybridOptimizer(torch.optim.SGD(other.parameters()))
        with pytest.raises(FailedPreconditionError, match=r"publish\(\)"):
            strategy.publish_every(seconds=1.0)
        with pytest.raises(InvalidArgumentError, match="no further param groups"):
            optimizer.add_param_group({"params": list(other.parameters())})


def test_workers_of_other_machines_are_not_met_without_certificates() -> None:
    with running(1, 2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = tower()
        with pytest.raises(FailedPreconditionError, match="STRATAGEM_INSECURE"):
            HybridOptimizer(torch.optim.SGD(model.parameters()))

"""Forgetting what a program needs no more, on servers and in its workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    MirroredStrategy,
    ParameterServerStrategy,
    Strategy,
    Variable,
    get_strategy,
)
from stratagem._parameter_server.extended import ParameterServerExtended
from tests.client.clusters import Cluster, running
from tests.client.coordinator.coordination import coordinating
from tests.client.modules.test_dropped_models import TRIALS, Model, built, hosted_objects, trained
from tests.client.servers.remembering import LoggedServer
from tests.full import a_few

pytestmark = pytest.mark.usefixtures("four_cpus")


def contents(strategy: ParameterServerStrategy) -> list[str]:
    return sorted(one.name for one in strategy.extended.variable_placements())


def remote(strategy: Strategy) -> ParameterServerExtended:
    assert isinstance(strategy.extended, ParameterServerExtended)
    return strategy.extended


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("consistency", ["async", "sync"])
@a_few("workers", [1, 2], "what one worker leaves behind, two leave as well")
def test_a_search_leaves_nothing_on_servers_or_workers(
    workers: int, consistency: str, trials: int
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[Any]:
        seen = []
        for number in range(trials):
            model, optimizer = built(strategy)
            trained(strategy, model, optimizer)
            optimizers = len(remote(strategy)._store.step_tracker.optimizers)
            strategy.barrier("trained")
            places = [(one.name, one.server) for one in strategy.extended.variable_placements()]
            strategy.barrier("listed")
            names = strategy.forget(model, optimizer)
            seen.append((names, optimizers, len(places)))
            assert number or len(places) > len(names)  # with slots
            del model, optimizer
        strategy.barrier("searched")
        assert contents(strategy) == []
        assert not remote(strategy)._variables.established
        return seen

    with running(2, workers) as cluster:
        before = hosted_objects()
        found = cluster.run(program, consistency=consistency)
    assert all(each == found[0] for each in found)
    assert set(map(str, found[0])) == {str(found[0][0])}
    assert found[0][0][0] == sorted(name for name, _ in Model().named_parameters())
    assert hosted_objects() <= before


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2) as found:
        yield found


@pytest.fixture
def strategy(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    with cluster.strategy() as found:
        yield found


def test_a_forgotten_model_is_a_plain_one_with_its_last_values(
    strategy: ParameterServerStrategy,
) -> None:
    model, optimizer = built(strategy, sparse=False)
    trained(strategy, model, optimizer)
    strategy.refresh()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert strategy.forget(model, optimizer) == sorted(n for n, _ in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    plain = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.tensor([0, 1])).backward()
    plain.step()
    assert not torch.equal(model.out.weight, before["out.weight"])
    with pytest.raises(InvalidArgumentError, match="belongs to no strategy"), strategy.scope():
        DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))


def test_what_stays_is_trained_as_before(strategy: ParameterServerStrategy) -> None:
    first, first_optimizer = built(strategy)
    second, second_optimizer = built(strategy)
    alone = Model()
    expected = DistributedOptimizer(torch.optim.SGD(alone.parameters(), 0.1, momentum=0.5))
    for _ in range(2):
        trained(strategy, second, second_optimizer)
        for _ in range(3):
            expected.zero_grad()
            alone(torch.tensor([0, 2, 5])).backward()
            expected.step()
        if first is not None:
            strategy.forget(first, first_optimizer)
            first = None  # type: ignore[assignment]
    strategy.refresh()
    assert torch.equal(second.out.weight, alone.out.weight)
    assert all("_1" in name for name in contents(strategy) if "/" not in name)
    strategy.forget(second, second_optimizer)


def test_an_optimizer_is_forgotten_without_its_model(strategy: ParameterServerStrategy) -> None:
    model, optimizer = built(strategy)
    trained(strategy, model, optimizer)
    assert any("/SGD" in name for name in contents(strategy))
    assert strategy.forget(optimizer) == []
    assert not any("/" in name for name in contents(strategy))
    with pytest.raises(FailedPreconditionError, match="was given to strategy"):
        strategy.run(optimizer.step)
    with pytest.raises(FailedPreconditionError, match="was given to strategy"):
        optimizer.state_dict()
    with pytest.raises(InvalidArgumentError, match="which is none of it"):
        strategy.forget(optimizer)
    strategy.forget(model)


def test_variables_are_forgotten_and_then_refused(cluster: Cluster) -> None:
    partitioner = stratagem.partitioners.FixedShardsPartitioner(2)
    with cluster.strategy(variable_partitioner=partitioner) as strategy:
        with strategy.scope():
            seen = Variable(1.0, name="seen")
            rows = Variable(torch.ones(4, 2), name="rows")
        with pytest.raises(InvalidArgumentError, match="or a part of one"):
            strategy.forget(rows.variables[0])
        assert strategy.forget(seen, rows) == ["rows", "seen"]
        assert contents(strategy) == []
        with strategy.scope():
            again = Variable(5.0, name="seen")
        assert again.name == "seen"
        for use in (seen.read_value, lambda: seen.assign(2.0), lambda: rows.variables[0].value()):
            with pytest.raises(FailedPreconditionError, match="was given to strategy"):
                use()
        with pytest.raises(FailedPreconditionError, match="was given to strategy"):
            strategy.extended.update(seen, lambda v: v.assign(3.0))
        assert again.numpy() == 5.0
        strategy.forget(again)


def test_what_cannot_be_forgotten_is_refused_and_nothing_is_deleted(
    strategy: ParameterServerStrategy, cluster: Cluster
) -> None:
    model, optimizer = built(strategy)
    with strategy.scope():
        shared = nn.Linear(4, 1)
        shared.weight = model.out.weight
        seen = Variable(1.0, name="seen")
    other = MirroredStrategy(["CPU:0"])
    with other.scope():
        others, theirs = nn.Linear(2, 2), Variable(1.0)
    before = contents(strategy)
    refused: list[tuple[Any, type[Exception], str]] = [
        ((), InvalidArgumentError, "was given nothing"),
        ((3,), InvalidTypeError, "takes modules, Variables"),
        ((nn.Linear(2, 2),), InvalidArgumentError, "without a parameter of this strategy"),
        ((others,), InvalidArgumentError, "of another strategy"),
        ((seen, theirs), InvalidArgumentError, "no variable of it"),
        ((model,), FailedPreconditionError, "the optimizer 'SGD.*' steps it"),
        ((model, optimizer), FailedPreconditionError, "another module, a Linear, has it"),
    ]
    for objects, error, match in refused:
        with pytest.raises(error, match=match):
            strategy.forget(*objects)

    def in_replica() -> None:
        strategy.forget(seen)

    with pytest.raises(RuntimeError, match="forget"):
        strategy.run(in_replica)
    with strategy.snapshot(), pytest.raises(FailedPreconditionError, match="snapshot"):
        strategy.forget(seen)
    assert contents(strategy) == before
    strategy.forget(model, optimizer, shared, seen)
    with pytest.raises(InvalidArgumentError, match="no variable of it"):
        strategy.forget(seen)
    with pytest.raises(InvalidArgumentError, match="without a parameter of this strategy"):
        strategy.forget(model)


def test_an_optimizer_that_was_dropped_steps_nothing(strategy: ParameterServerStrategy) -> None:
    model, optimizer = built(strategy)
    trained(strategy, model, optimizer)
    cycle: list[Any] = [optimizer]
    cycle.append(cycle)
    del optimizer, cycle
    strategy.forget(model)
    assert remote(strategy)._store.step_tracker.optimizers == []


def test_workers_that_forget_different_things_delete_nothing() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[str]:
        with strategy.scope():
            made = [Variable(1.0, name="a"), Variable(1.0, name="b")]
        with pytest.raises(stratagem.DeadlineExceededError, match=r"forget/[ab]"):
            strategy.forget(made[worker])
        strategy.barrier("refused")
        return contents(strategy)

    with running(1, 2) as cluster:
        assert cluster.run(program, peer_seconds=2) == [["a", "b"]] * 2


def test_a_checkpoint_has_nothing_of_what_was_forgotten(
    strategy: ParameterServerStrategy, tmp_path: Any
) -> None:
    model, optimizer = built(strategy)
    trained(strategy, model, optimizer)
    written = strategy.save(tmp_path / "first", wait=False)
    strategy.forget(model, optimizer)
    written.result()
    with strategy.scope():
        kept = Variable(2.0, name="kept")
    strategy.save(tmp_path / "second")
    kept.assign(3.0)
    strategy.restore(tmp_path / "second")
    assert kept.numpy() == 2.0
    with pytest.raises(stratagem.NotFoundError, match="kept"):
        strategy.restore(tmp_path / "first")
    strategy.restore(tmp_path / "first", strict=False)
    again, optimizer = built(strategy)
    restored = again.out.weight.detach().clone()
    strategy.forget(again, optimizer)
    afresh, optimizer = built(strategy)
    # A value of a checkpoint is that of one variable.
    assert torch.equal(afresh.out.weight, Model().out.weight)
    assert not torch.equal(afresh.out.weight, restored)
    strategy.forget(afresh, optimizer, kept)


@pytest.mark.full("servers and workers forget alike")
def test_workers_of_a_coordinator_forget_what_its_program_forgets() -> None:
    with coordinating(num_workers=2) as coordination:
        strategy, coordinator = coordination.strategy, coordination.coordinator
        seen = []
        for _ in range(3):
            model, optimizer = built(strategy)

            def step(model: Model = model, optimizer: DistributedOptimizer = optimizer) -> int:
                trained(get_strategy(), model, optimizer)
                return len(remote(get_strategy())._variables.established)

            coordinator.schedule(step)
            with pytest.raises(FailedPreconditionError, match="functions are scheduled"):
                while True:  # until the function runs
                    coordinator.schedule(step)
                    strategy.forget(model, optimizer)
            coordinator.join()
            seen.append(coordinator.fetch([coordinator.schedule(step) for _ in range(4)]))
            coordinator.join()
            strategy.forget(model, optimizer)
        assert contents(strategy) == []
        assert {count for counts in seen for count in counts} == {5}

        with strategy.scope():
            kept = Variable(1.0, name="kept")

        def forget() -> None:
            attached = get_strategy()
            assert isinstance(attached, ParameterServerStrategy)
            attached.forget(kept)

        with pytest.raises(InvalidArgumentError, match=r"a call of forget\(\)"):
            coordinator.fetch(coordinator.schedule(forget))


def test_a_server_with_a_log_has_forgotten_it_when_it_is_started_again(tmp_path: Any) -> None:
    with ExitStack() as stack:
        server = LoggedServer(tmp_path, stack)
        with Cluster([server.address], 1).strategy() as strategy:
            model, optimizer = built(strategy)
            trained(strategy, model, optimizer)
            with strategy.scope():
                kept = Variable(2.0, name="kept")
            strategy.forget(model, optimizer)
            again, optimizer = built(strategy)
            trained(strategy, again, optimizer)
            before, expected = contents(strategy), again.out.weight.detach().clone()
            server.kill()
            server.start()
            assert contents(strategy) == before
            strategy.refresh()
            assert torch.equal(again.out.weight, expected)
            strategy.forget(again, optimizer)
            server.kill()
            server.start()
            assert contents(strategy) == ["kept"]
            assert kept.numpy() == 2.0


def test_a_program_that_begins_anew_beside_what_another_trial_made_is_refused(
    cluster: Cluster,
) -> None:
    with cluster.strategy() as first:
        first.forget(*built(first))
        kept, optimizer = built(first)
        trained(first, kept, optimizer)
    with cluster.strategy() as again:
        before = contents(again)
        with pytest.raises(stratagem.AttachmentError, match="had forgotten what it had made"):
            built(again)
        assert contents(again) == before

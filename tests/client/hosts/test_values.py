"""Variables, parameters and buffers that a program and its hosts share."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    PerReplica,
    TPUStrategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from tests.client.hosts.training import Trained, global_batches, parameters_of_cores


def replica() -> stratagem.ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


def number() -> torch.Tensor:
    return torch.as_tensor(replica().replica_id_in_sync_group, dtype=torch.float32)


def of_cores(strategy: TPUStrategy, value: Any) -> list[Any]:
    return [each.tolist() for each in strategy.experimental_local_results(value)]


def train(strategy: TPUStrategy, trained: Trained, steps: int = 2) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(global_batches(steps)))
    strategy.extended.experimental_run_steps_on_iterator(trained.step, iterator, steps)


def test_functions_run_on_all_cores_with_their_own_arguments(
    strategy: TPUStrategy,
) -> None:
    each = strategy.experimental_distribute_values_from_function(
        lambda context: torch.tensor(10 * context.replica_id_in_sync_group)
    )
    found = strategy.run(lambda x, y: {"sum": x + y + number()}, (each, 1))
    assert of_cores(strategy, found["sum"]) == [1, 12, 23, 34]
    assert strategy.run(lambda: "as it is") == "as it is"
    assert strategy.run(lambda: None) is None
    assert strategy.reduce("sum", found["sum"], axis=None).item() == 70


def test_merge_calls_bring_all_hosts_together(strategy: TPUStrategy) -> None:
    def merge(strategy: TPUStrategy, value: PerReplica) -> Any:
        assert stratagem.in_cross_replica_context()
        return strategy.extended.reduce_to("mean", value, value)

    def replica_fn() -> Any:
        gathered = replica().all_gather(number().reshape(1), axis=0)
        return replica().merge_call(merge, (number(),)), gathered

    mean, gathered = strategy.run(replica_fn)
    assert of_cores(strategy, mean) == [1.5] * 4
    assert of_cores(strategy, gathered) == [[0, 1, 2, 3]] * 4


def test_variables_are_written_here_and_there(strategy: TPUStrategy) -> None:
    with strategy.scope():
        v = Variable(1.0, aggregation=VariableAggregation.SUM)
    assert of_cores(strategy, strategy.run(v.read_value)) == [1] * 4
    v.assign(5.0)
    assert of_cores(strategy, strategy.run(v.read_value)) == [5] * 4
    strategy.run(lambda: v.assign_add(number()))
    assert v.read_value().item() == 11
    strategy.extended.update(v, lambda copy: copy.assign_sub(1.0))
    assert of_cores(strategy, strategy.run(v.read_value)) == [10] * 4


def test_what_each_core_counts_is_added_up_when_it_is_read(
    strategy: TPUStrategy,
) -> None:
    with strategy.scope():
        count = Variable(
            0,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )

    def add() -> Any:
        count.assign_add(1 + number().long())
        return count.read_value()

    assert of_cores(strategy, strategy.run(add)) == [1, 2, 3, 4]
    assert count.read_value().item() == 10
    count.assign(6)
    assert count.read_value().item() == 6
    assert of_cores(strategy, strategy.run(add)) == [4, 3, 4, 5]
    assert count.read_value().item() == 16


def test_what_is_written_to_parameters_goes_to_all_hosts(strategy: TPUStrategy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 1, bias=False)
    model.load_state_dict({"weight": torch.tensor([[3.0, 4.0]])})
    found = parameters_of_cores(strategy, model)
    assert [each.tolist() for each in found] == [[3, 4]] * 4


@pytest.mark.parametrize("known", [False, True])
def test_what_is_frozen_is_frozen_on_all_cores(strategy: TPUStrategy, known: bool) -> None:
    trained = Trained(strategy)
    if known:
        train(strategy, trained)
    first = next(trained.model.parameters())
    first.requires_grad_(False)
    before = first.detach().clone()
    train(strategy, trained)

    def own() -> torch.Tensor:
        return next(trained.model.parameters()).detach().clone()

    assert of_cores(strategy, strategy.run(own)) == [before.tolist()] * 4


def test_a_copy_of_a_strategy_connects_for_itself(strategy: TPUStrategy) -> None:
    assert strategy.run(lambda: 1) == 1
    copied = copy.deepcopy(strategy)
    assert copied.extended.calls_per_host == 0
    assert copied.run(lambda: 2) == 2
    copied.extended.disconnect()


def test_running_statistics_come_back(strategy: TPUStrategy) -> None:
    with strategy.scope():
        model = nn.BatchNorm1d(1, momentum=1.0)
    rows = PerReplica([torch.tensor([[1.0], [3.0]]) + x for x in range(4)])
    strategy.run(lambda x: model(x).detach(), (rows,))
    assert model.running_mean is not None
    assert model.running_mean.item() == 2
    model.eval()
    strategy.run(lambda x: model(x).detach(), (rows,))
    assert (model.running_mean.item(), int(model.num_batches_tracked or 0)) == (2, 1)


def test_states_of_optimizers_are_read_and_written(strategy: TPUStrategy) -> None:
    trained = Trained(strategy)
    train(strategy, trained)
    state = trained.optimizer.state_dict()
    assert [each["step"].item() for each in state["state"].values()] == [2] * 4
    trained.optimizer.load_state_dict(state)
    train(strategy, trained, steps=3)
    state = trained.optimizer.state_dict()
    assert [each["step"].item() for each in state["state"].values()] == [5] * 4


def test_a_session_ends_and_another_goes_on(strategy: TPUStrategy) -> None:
    trained = Trained(strategy)
    train(strategy, trained)
    before = parameters_of_cores(strategy, trained.model)[0]
    strategy.extended.disconnect()
    assert strategy.extended.calls_per_host == 0
    assert torch.equal(parameters_of_cores(strategy, trained.model)[3], before)
    train(strategy, trained)
    state = trained.optimizer.state_dict()["state"]
    assert [each["step"].item() for each in state.values()] == [4] * 4


def test_checkpoints_have_what_hosts_know(strategy: TPUStrategy, tmp_path: Path) -> None:
    trained = Trained(strategy)
    train(strategy, trained)
    strategy.save(tmp_path / "saved.safetensors")
    saved = parameters_of_cores(strategy, trained.model)[0]
    train(strategy, trained)
    assert not torch.equal(parameters_of_cores(strategy, trained.model)[0], saved)
    strategy.restore(tmp_path / "saved.safetensors")
    assert torch.equal(parameters_of_cores(strategy, trained.model)[3], saved)
    state = trained.optimizer.state_dict()["state"]
    assert [each["step"].item() for each in state.values()] == [2] * 4


def test_learning_rates_are_those_of_the_program(strategy: TPUStrategy) -> None:
    with strategy.scope():
        v = Variable(0.0)
    optimizer = DistributedOptimizer(torch.optim.SGD([v.value()], lr=1.0))
    optimizer.zero_grad()

    def step() -> None:
        v.grad = torch.tensor(1.0)
        optimizer.step()

    strategy.run(step)
    optimizer.param_groups[0]["lr"] = 0.25
    strategy.run(step)
    assert v.read_value().item() == -1.25

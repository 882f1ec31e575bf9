"""ParameterServerStrategy in its between-graph shape."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    AttachmentError,
    ContextError,
    DeadlineExceededError,
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    ParameterServerStrategy,
    UnauthenticatedError,
    UpdateFunctionError,
    Variable,
    config,
)
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import TOKEN, Cluster, running


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=2, num_workers=2) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    with cluster.strategy() as strategy:
        yield strategy


def model(seed: int = 0) -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    # Workers are threads here, and share torch's own generator.
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)
    return module


def loss_of(module: nn.Module) -> torch.Tensor:
    inputs = torch.linspace(-1, 1, 24).reshape(8, 3)
    prediction: torch.Tensor = module(inputs)
    return prediction.pow(2).mean()


def training_step(module: nn.Module, optimizer: DistributedOptimizer) -> Any:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(module)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def equal(ours: nn.Module, theirs: nn.Module) -> bool:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return all(torch.equal(mine, other) for mine, other in pairs)


# Construction.


def test_construction_connects_to_nothing() -> None:
    strategy = Cluster(["nowhere.invalid:1", "nowhere.invalid:2"], 1).strategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.parameter_devices == ("/job:ps/task:0", "/job:ps/task:1")
    assert strategy.extended.worker_devices == (
        "/job:worker/replica:0/task:0/device:CPU:0",
    )


def test_a_cluster_needs_parameter_servers() -> None:
    resolver = SimpleClusterResolver(
        stratagem.ClusterSpec({"worker": ["w:1"]}), task_type="worker", task_id=0
    )
    with pytest.raises(InvalidArgumentError, match="needs to have `ps` jobs"):
        ParameterServerStrategy(resolver)


def test_a_cluster_needs_a_task() -> None:
    spec = stratagem.ClusterSpec({"worker": ["w:1"], "ps": ["p:1"]})
    with pytest.raises(InvalidArgumentError, match="must also specify `task_type`"):
        ParameterServerStrategy(SimpleClusterResolver(spec))


def test_the_cluster_comes_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1", "p:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    strategy = ParameterServerStrategy()
    assert len(strategy.extended.parameter_devices) == 2
    assert not strategy.extended.should_checkpoint
    assert strategy.cluster_resolver.task_id == 0


def test_synchronous_replicas_are_numbered_over_all_workers() -> None:
    config.set_logical_cpus(2)
    try:
        cluster = Cluster(["p:1"], 3)
        strategy = cluster.strategy(2, consistency="sync", num_replicas_per_worker=2)
        assert strategy.num_replicas_in_sync == 6
        assert strategy.extended._first_replica_id == 4
        assert cluster.strategy(2, num_replicas_per_worker=2).num_replicas_in_sync == 2
    finally:
        config.set_logical_cpus(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"consistency": "eventual"}, "must be one of async, sync"),
        ({"num_replicas_per_worker": 9}, "config.set_logical_cpus"),
        ({"num_replicas_per_worker": 0}, "num_replicas_per_worker is 0"),
    ],
)
def test_a_setting_out_of_range_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Cluster(["p:1"], 1).strategy(**settings)


def test_the_token_comes_from_a_file(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv("STRATAGEM_TOKEN_FILE", str(path))
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        cluster.strategy(token=None)
    for content in ("wrong", TOKEN):
        path.write_text(content + "\n")
        with cluster.strategy(token=None) as strategy, strategy.scope():
            if content == TOKEN:
                Variable(1.0)
                continue
            with pytest.raises(UnauthenticatedError):
                Variable(1.0)


def test_a_deep_copy_is_another_strategy_for_the_same_cluster(
    strategy: ParameterServerStrategy,
) -> None:
    other = copy.deepcopy(strategy)
    with strategy.scope():
        Variable(1.0, name="v")
    with strategy.scope(), pytest.raises(ContextError, match="Mixing different"):
        other.run(lambda: None)
    assert [place.name for place in other.extended.variable_placements()] == ["v"]
    other.close()


# Without a cluster.


def test_without_a_cluster_variables_stay_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = ParameterServerStrategy()
    with strategy.scope():
        module = model()
        counter = Variable(0.0)
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    plain = model()
    reference = torch.optim.Adam(plain.parameters(), lr=0.1)
    for _ in range(5):
        strategy.run(training_step(module, optimizer))
        reference.zero_grad()
        loss_of(plain).backward()  # type: ignore[no-untyped-call]
        reference.step()
    strategy.barrier()
    assert equal(module, plain)
    assert counter.device_name == "/job:localhost/replica:0/task:0/device:CPU:0"
    places = strategy.extended.variable_placements()
    assert {place.server for place in places} == {"/job:localhost/task:0"}


# Attaching.


def test_a_worker_attaches_to_what_the_chief_created(cluster: Cluster) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> nn.Module:
        with strategy.scope():
            return model(seed=worker)

    chiefs, others = cluster.run(program)
    assert equal(chiefs, model(seed=0))
    assert equal(others, chiefs)


def test_a_worker_with_another_program_sees_the_first_difference_at_once(
    cluster: Cluster,
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> nn.Module:
        with strategy.scope():
            return nn.Sequential(nn.Linear(3, 4), nn.Linear(4 + worker, 2))

    with cluster.strategy(0) as chief:
        program(chief, 0)
    with (
        cluster.strategy(1) as worker,
        pytest.raises(AttachmentError) as caught,
    ):
        program(worker, 1)
    message = str(caught.value)
    assert "variable 2 of the chief's program is '1.weight'" in message
    assert "(2, 4)" in message
    assert "(2, 5)" in message
    assert "/job:worker/task:1" in message


def test_a_worker_that_waits_in_vain_lists_what_is_missing(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief, chief.scope():
        Variable(1.0, name="first")
    with cluster.strategy(1, peer_seconds=0.2) as worker, worker.scope():
        Variable(1.0, name="first")
        with pytest.raises(AttachmentError, match="are missing: second"):
            Variable(1.0, name="second")


# Local writes.


def test_a_state_dict_loaded_by_the_chief_reaches_the_other_workers(
    cluster: Cluster,
) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        with chief.scope():
            written = model(0)
        with worker.scope():
            seen = model(1)
        written.load_state_dict(model(5).state_dict())
        chief.refresh()
        worker.refresh()
        assert equal(seen, model(5))


def test_training_after_loading_equals_the_same_locally(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = model(0)
    module.load_state_dict(model(5).state_dict())
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))
    strategy.run(training_step(module, optimizer))
    strategy.refresh()
    plain = model(5)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    loss_of(plain).backward()  # type: ignore[no-untyped-call]
    reference.step()
    assert equal(module, plain)


def test_only_the_chief_may_write_parameters(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief, chief.scope():
        module = model()
    with cluster.strategy(1) as worker:
        with worker.scope():
            module = model()
        module.load_state_dict(model(5).state_dict())
        with pytest.raises(FailedPreconditionError, match=r"'0\.weight'.*chief"):
            worker.run(lambda: None)


def test_a_parameter_written_in_a_replica_is_named_and_gets_its_value_back(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = model()

    def step() -> None:
        with torch.no_grad():
            dict(module.named_parameters())["2.bias"].add_(1)

    with pytest.raises(ContextError, match=r"'2\.bias' was written in a replica"):
        strategy.run(step)
    strategy.run(lambda: None)
    assert equal(module, model())


def test_a_parameter_that_changed_its_dtype_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = model()
    module.double()
    with pytest.raises(InvalidArgumentError, match=r"'0\.weight' now has"):
        strategy.run(lambda: None)


# Steps.


def test_the_state_of_an_optimizer_comes_and_goes(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = model()
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    strategy.run(training_step(module, optimizer))
    saved = optimizer.state_dict()
    assert float(saved["state"][0]["step"]) == 1
    strategy.run(training_step(module, optimizer))
    optimizer.load_state_dict(saved)
    again = optimizer.state_dict()
    assert float(again["state"][0]["step"]) == 1
    assert torch.equal(again["state"][1]["exp_avg"], saved["state"][1]["exp_avg"])
    slots = [
        place.name
        for place in strategy.extended.variable_placements()
        if place.slot_of == "0.weight"
    ]
    assert sorted(slots) == [
        "0.weight/Adam/exp_avg",
        "0.weight/Adam/exp_avg_sq",
        "0.weight/Adam/step",
    ]


def test_gradients_of_several_replicas_are_averaged_and_pushed_once(
    cluster: Cluster,
) -> None:
    config.set_logical_cpus(2)
    try:
        with cluster.strategy(num_replicas_per_worker=2) as strategy:
            with strategy.scope():
                module = nn.Linear(2, 1, bias=False)
            start = module.weight.detach().clone()
            optimizer = DistributedOptimizer(
                torch.optim.SGD(module.parameters(), lr=1.0)
            )

            def step() -> None:
                replica = stratagem.get_replica_context()
                assert replica is not None
                number = int(replica.replica_id_in_sync_group or 0)
                module(torch.full((1, 2), 2.0 * number)).sum().backward()
                optimizer.step()

            strategy.run(step)
            strategy.refresh()
            assert torch.equal(module.weight, start - 1.0)
    finally:
        config.set_logical_cpus(1)


def test_rows_of_a_sparse_gradient_are_pushed_as_rows(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = nn.Embedding(5, 2, sparse=True)
    plain = nn.Embedding(5, 2, sparse=True)
    plain.load_state_dict(table.state_dict())
    rows = torch.tensor([1, 3, 1])
    optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters(), lr=0.1))
    reference = torch.optim.Adagrad(plain.parameters(), lr=0.1)

    def step() -> None:
        table(rows).pow(2).sum().backward()
        optimizer.step()

    strategy.run(step)
    strategy.refresh()
    plain(rows).pow(2).sum().backward()
    reference.step()
    torch.testing.assert_close(table.weight, plain.weight)


def test_variables_are_trained_like_parameters(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0, 2.0])
        optimizer = DistributedOptimizer(torch.optim.SGD([v.value()], lr=0.5))

    def step() -> None:
        optimizer.zero_grad()
        (v * v).sum().backward()
        optimizer.step()

    strategy.run(step)
    assert v.numpy().tolist() == [0.0, 0.0]


def test_a_lazy_module_is_hosted_once_it_knows_its_shape(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        lazy = nn.LazyLinear(2)
        optimizer = DistributedOptimizer(torch.optim.SGD(lazy.parameters(), lr=0.5))

    def step() -> None:
        optimizer.zero_grad()
        lazy(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    strategy.run(step)
    before = lazy.weight.detach().clone()
    strategy.run(step)
    strategy.refresh()
    torch.testing.assert_close(lazy.weight.detach(), before - 1.0)


def test_tied_weights_are_one_variable(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = first.weight
        tied = nn.Sequential(first, second)
    names = [place.name for place in strategy.extended.variable_placements()]
    assert sorted(names) == ["0.bias", "0.weight", "1.bias"]
    assert tied[0].weight is tied[1].weight


# Update functions.


def test_an_update_function_runs_on_the_server(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0, 2.0])
        returned = strategy.extended.update(
            v, lambda v, a, b=0.0: v.assign(v * a + b), args=(3.0,), kwargs={"b": 1.0}
        )
    assert returned is v
    assert v.numpy().tolist() == [4.0, 7.0]
    grouped = strategy.extended.update(v, lambda v: v.assign_add(v), group=False)
    assert grouped == (v,)


def test_an_update_function_may_read_a_variable_of_another_server(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        here, there = Variable(1.0), Variable(5.0)
    there.assign(6.0)
    strategy.extended.update(here, lambda v, other: v.assign_add(other), args=(there,))
    assert here.numpy() == 7.0
    assert here.device_name != there.device_name


def test_an_update_function_that_looks_at_values_is_refused_with_its_line(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable(1.0)
    with pytest.raises(
        UpdateFunctionError, match=r"test_parameter_server_strategy\.py"
    ):
        strategy.extended.update(v, lambda v: v.assign(float(v) + 1))
    assert v.numpy() == 1.0


def test_something_else_than_a_variable_of_the_strategy_cannot_be_updated(
    strategy: ParameterServerStrategy,
) -> None:
    local = Variable(1.0)
    for other in (local, 3.0):
        with pytest.raises(InvalidArgumentError, match="must be a Variable"):
            strategy.extended.update(other, lambda v: v.assign(0.0))


def test_adam_by_hand_equals_torch(strategy: ParameterServerStrategy) -> None:
    extended = strategy.extended
    with strategy.scope():
        v = Variable([1.0, -2.0, 3.0], name="v")
        with extended.colocate_vars_with(v):
            mean = Variable(torch.zeros(3), trainable=False)
            square = Variable(torch.zeros(3), trainable=False)
        home = extended.non_slot_devices([v])
        with extended.colocate_vars_with(home):
            count = Variable(0.0, trainable=False)

    def adam(v: Variable, gradient: torch.Tensor, rate: float) -> None:
        mean.assign(0.9 * mean + 0.1 * gradient)
        square.assign(0.999 * square + 0.001 * gradient * gradient)
        unbiased = mean / (1 - 0.9**count)
        spread = torch.sqrt(square / (1 - 0.999**count)) + 1e-8
        v.assign_sub(rate * unbiased / spread)

    plain = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    reference = torch.optim.Adam([plain], lr=0.0)
    for number in range(1, 30):
        gradient = torch.sin(torch.arange(3.0) * number)
        reference.param_groups[0]["lr"] = 0.1 / number
        plain.grad = gradient
        reference.step()
        with strategy.scope():
            extended.update_non_slot(home, lambda c: c.assign_add(1.0), args=(count,))
            extended.update(v, adam, args=(gradient, 0.1 / number))
    assert count.numpy() == 29
    torch.testing.assert_close(v.value(), plain, rtol=1e-6, atol=1e-7)


# Values of replicas, and meeting other workers.


def test_a_value_cannot_be_reduced_to_another_worker(
    strategy: ParameterServerStrategy,
) -> None:
    value = torch.ones(2)
    own = strategy.extended.reduce_to("mean", value, "/job:worker/task:0")
    assert torch.equal(own, value)
    with pytest.raises(InvalidArgumentError, match="Cannot reduce to another worker"):
        strategy.extended.reduce_to("mean", value, "/job:worker/task:1")


def test_values_are_reduced_to_where_a_variable_is_used(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0])
    pairs = [(torch.ones(1), v), (torch.zeros(1), v)]
    first, second = strategy.extended.batch_reduce_to("mean", pairs)
    assert (first.item(), second.item()) == (1.0, 0.0)


def test_workers_meet_at_a_barrier_and_then_see_each_others_work(
    cluster: Cluster,
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        with strategy.scope():
            counter = Variable(0.0, name="counter")
        seen = []
        for _ in range(5):
            counter.assign_add(1.0)
            strategy.barrier("written")
            seen.append(counter.read_value().item())
            strategy.barrier("read")
        return seen

    assert cluster.run(program) == [[2.0, 4.0, 6.0, 8.0, 10.0]] * 2


def test_a_barrier_that_is_not_reached_by_all_names_those_that_came(
    strategy: ParameterServerStrategy,
) -> None:
    with pytest.raises(DeadlineExceededError, match="/job:worker/task:0"):
        strategy.barrier("lonely", timeout=0.1)


def test_placements_tell_name_shape_server_and_bytes(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = model()
    table = [
        (place.name, place.shape, place.server, place.nbytes)
        for place in strategy.extended.variable_placements()
    ]
    assert table == [
        ("0.weight", (4, 3), "/job:ps/task:0", 48),
        ("2.weight", (1, 4), "/job:ps/task:0", 16),
        ("0.bias", (4,), "/job:ps/task:1", 16),
        ("2.bias", (1,), "/job:ps/task:1", 4),
    ]
    assert sum(p.nbytes for p in module.parameters()) == sum(row[-1] for row in table)


def test_an_evaluator_attaches_and_reads(cluster: Cluster) -> None:
    spec = stratagem.ClusterSpec({**cluster.spec.as_dict(), "evaluator": ["e:1"]})
    with cluster.strategy() as chief, chief.scope():
        trained = model(3)
    resolver = SimpleClusterResolver(spec, task_type="evaluator", task_id=0)
    with ParameterServerStrategy(resolver, token=TOKEN) as evaluator:
        with evaluator.scope():
            seen = model(4)
        assert evaluator.extended.should_checkpoint
    assert equal(seen, trained)

"""Variables of one name, which tasks and checkpoints must not take for each other."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    AttachmentError,
    DistributedOptimizer,
    InvalidArgumentError,
    MirroredStrategy,
    ParameterServerStrategy,
    Strategy,
    Variable,
)
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.towers import VALUES, Tower, evaluating, made

ORDER = "only the order in which this program makes 'fc.weight', 'fc.weight_1' tells them apart"

quiet = pytest.mark.filterwarnings("ignore:only the order in which")


# Tasks that attach.


def test_an_evaluator_that_makes_only_the_second_of_two_is_refused(cluster: Cluster) -> None:
    with cluster.strategy() as chief, evaluating(cluster) as evaluator:
        with chief.scope():
            user, item = Tower(1.0), Tower(2.0)
        with pytest.raises(AttachmentError) as caught, evaluator.scope():
            item = Tower()
    message = str(caught.value)
    assert "'fc.weight' is of 'item' in /job:evaluator/task:0's program" in message
    assert "but of 'user' in the chief's program, where 'fc.weight_1' is of 'item'" in message
    assert "scope(name=...)" in message
    assert (user.value, item.value) != (1.0, 1.0)


@quiet
def test_an_evaluator_that_makes_one_of_two_without_names_is_refused(cluster: Cluster) -> None:
    with cluster.strategy() as chief, evaluating(cluster) as evaluator:
        kept = made(chief, 1.0, 2.0)
        with pytest.raises(AttachmentError, match=r"makes only 'fc\.weight', so that nobody"):
            made(evaluator, 0.0)
    del kept


@quiet
def test_scopes_of_their_own_make_no_difference_once_it_evaluates(cluster: Cluster) -> None:
    with cluster.strategy() as chief, evaluating(cluster) as evaluator:
        kept = made(chief, 1.0)
        seen = made(evaluator, 0.0)
        evaluator.refresh()
        kept += made(chief, 2.0)
        with pytest.raises(AttachmentError, match=r"has 'fc\.weight', 'fc\.weight_1', which"):
            evaluator.refresh()
    del seen


def test_an_evaluator_finds_what_has_a_name_of_its_own(cluster: Cluster) -> None:
    towers = []
    with cluster.strategy() as chief, evaluating(cluster) as evaluator:
        for name in VALUES:
            with chief.scope(name=name):
                towers.append(Tower(VALUES[name]))
        for name in reversed(VALUES):
            with evaluator.scope(name=name):
                towers.append(Tower())
        evaluator.refresh()
        assert [tower.value for tower in towers] == [1.0, 2.0, 3.0, 3.0, 2.0, 1.0]


def test_an_evaluator_may_make_what_both_call_alike(cluster: Cluster) -> None:
    with cluster.strategy() as chief, evaluating(cluster) as evaluator:
        with chief.scope():
            model, average = Tower(1.0), Tower(2.0)
        with evaluator.scope():
            model = Tower()
        evaluator.refresh()
        assert (model.value, average.value) == (1.0, 2.0)


def test_a_worker_with_another_order_of_a_set_is_refused(cluster: Cluster) -> None:
    def tables(strategy: ParameterServerStrategy, order: Sequence[str]) -> Any:
        with strategy.scope():
            found = {name: nn.Embedding(10, 2) for name in order}
        return found

    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        kept = tables(chief, ["user", "item"])
        with pytest.raises(AttachmentError, match=r"'weight' is of 'item' in /job:worker/task:1"):
            tables(worker, ["item", "user"])
    del kept


@quiet
def test_a_worker_may_be_behind_a_chief_that_makes_more(cluster: Cluster) -> None:
    def trial(strategy: ParameterServerStrategy) -> Tower:
        (model,) = made(strategy, 0.0)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

        def step() -> None:
            optimizer.zero_grad()
            model.fc(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        strategy.run(step)
        strategy.refresh()
        return model

    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        kept = [trial(chief) for _ in range(3)]
        kept += [trial(worker) for _ in range(3)]
        assert [model.value for model in kept[3:]] == [-2.0] * 3


@quiet
def test_a_worker_that_trains_without_one_of_them_is_refused(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        kept = made(chief, 1.0) + made(chief, 2.0) + made(worker, 0.0)
        with pytest.raises(AttachmentError, match="which only the order of their making tells"):
            worker.refresh()
    del kept


@quiet
def test_a_program_that_goes_on_with_fewer_is_refused(cluster: Cluster) -> None:
    with cluster.strategy() as chief:
        kept = made(chief, 1.0, 2.0)
    with cluster.strategy() as again:
        kept += made(again, 3.0)
        with pytest.raises(AttachmentError, match="an earlier run, whose variables the servers"):
            again.refresh()


# Checkpoints.


def saved(folder: Path, *values: float, together: bool = True) -> Path:
    """A checkpoint of towers that nothing names, by a strategy in one process."""
    strategy, path = MirroredStrategy(["CPU:0"]), folder / "towers.safetensors"
    groups = [values] if together else [[value] for value in values]
    kept = [made(strategy, *group) for group in groups]
    strategy.save(path)
    del kept
    return path


@quiet
@pytest.mark.parametrize("together", [True, False])
def test_restoring_fewer_is_refused(tmp_path: Path, together: bool) -> None:
    path = saved(tmp_path, 1.0, 2.0, together=together)
    strategy = MirroredStrategy(["CPU:0"])
    (only,) = made(strategy, 0.0)
    with pytest.raises(InvalidArgumentError, match=r"the checkpoint has 'fc\.weight', 'fc\.weight"):
        strategy.restore(path)
    assert only.value == 0.0


@quiet
def test_making_fewer_after_restoring_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, 1.0, 2.0)
    strategy = MirroredStrategy(["CPU:0"])
    strategy.restore(path)
    with pytest.raises(InvalidArgumentError, match="this program makes only"):
        made(strategy, 0.0)


@quiet
def test_making_fewer_after_restoring_a_plain_state_is_refused_at_the_first_run() -> None:
    first, second = MirroredStrategy(["CPU:0"]), MirroredStrategy(["CPU:0"])
    kept = made(first, 1.0, 2.0)
    second.load_state_dict({**first.state_dict()})
    kept += made(second, 0.0)
    with pytest.raises(InvalidArgumentError, match="this program makes only"):
        second.run(lambda: None)


@quiet
def test_making_more_after_restoring_is_refused_unless_that_is_expected(tmp_path: Path) -> None:
    path = saved(tmp_path, 1.0)
    for strict in (False, True):
        strategy = MirroredStrategy(["CPU:0"])
        strategy.restore(path, strict=strict)
        kept = made(strategy, 0.0)
        if strict:
            with pytest.raises(InvalidArgumentError, match=r"also makes 'fc\.weight_1'"):
                made(strategy, 0.0)
        else:
            kept += made(strategy, 0.0)
            assert [tower.value for tower in kept] == [1.0, 0.0]


def test_restoring_in_another_order_is_refused(tmp_path: Path) -> None:
    path, first = tmp_path / "towers.safetensors", MirroredStrategy(["CPU:0"])
    with first.scope():
        user, item = Tower(1.0), Tower(2.0)
    first.save(path)
    second = MirroredStrategy(["CPU:0"])
    with second.scope():
        item, user = Tower(), Tower()
    with pytest.raises(InvalidArgumentError, match="of 'item' in this program, but of 'user' in"):
        second.restore(path)
    assert (user.value, item.value) == (0.0, 0.0)


def test_a_cluster_restores_in_the_order_of_the_checkpoint_only(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            user, item = Tower(1.0), Tower(2.0)
        strategy.save(tmp_path)
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            item, user = Tower(), Tower()
        with pytest.raises(InvalidArgumentError, match="of 'item' in this program"):
            strategy.restore(tmp_path)
    with running(1) as cluster, cluster.strategy() as strategy:
        strategy.restore(tmp_path)
        with strategy.scope():
            user, item = Tower(), Tower()
        assert (user.value, item.value) == (1.0, 2.0)


def test_an_earlier_release_reads_the_index_of_a_checkpoint(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            user, item = Tower(1.0), Tower(2.0)
        strategy.save(tmp_path)
    del user, item
    (index,) = tmp_path.glob("checkpoint-*/*.json")
    content = json.loads(index.read_text())["content"]
    assert not any("origin" in tensor["spec"] for tensor in content["tensors"])
    assert content["origins"]["fc.weight_1"]["label"] == "item"


def test_a_checkpoint_without_origins_restores_with_a_warning() -> None:
    first, second = MirroredStrategy(["CPU:0"]), MirroredStrategy(["CPU:0"])
    with first.scope():
        user, item = Tower(1.0), Tower(2.0)
    with second.scope():
        mine, other = Tower(), Tower()
    with pytest.warns(UserWarning, match=ORDER):
        second.load_state_dict({**first.state_dict()})
    assert (mine.value, other.value) == (user.value, item.value)


# Warnings.


def test_the_chief_warns_once_of_what_only_its_order_tells_apart(cluster: Cluster) -> None:
    with cluster.strategy() as chief:
        with pytest.warns(UserWarning, match=ORDER) as caught:
            kept = made(chief, 1.0, 2.0)
        assert caught[0].filename == __file__
        kept += made(chief, 3.0)
        with chief.scope():
            unnamed = [Variable(0.0), Variable(1.0)]
    del unnamed


def ordinary(strategy: Strategy) -> list[object]:
    with strategy.scope():
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        critic = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
        encoder, decoder = nn.Linear(2, 2), nn.Linear(2, 2)
        steps, best = Variable(0, name="steps"), Variable(0.0, name="best")
        towers = {name: Tower() for name in VALUES}
        held = SimpleNamespace(user=nn.Embedding(3, 2), item=nn.Embedding(3, 2))
        together = nn.ModuleDict({name: nn.Embedding(3, 2) for name in VALUES})
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
    return [model, critic, encoder, decoder, steps, best, towers, held, together, optimizer]


def test_ordinary_programs_do_not_warn(tmp_path: Path) -> None:
    strategy = MirroredStrategy(["CPU:0"])
    with running() as cluster, warnings.catch_warnings(), cluster.strategy() as chief:
        warnings.simplefilter("error")
        kept = ordinary(chief) + ordinary(strategy)
        chief.save(tmp_path / "cluster")
        strategy.save(tmp_path / "local.safetensors")
        strategy.restore(tmp_path / "local.safetensors")
        chief.restore(tmp_path / "cluster")
    del kept

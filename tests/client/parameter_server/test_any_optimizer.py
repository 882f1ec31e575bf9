"""Servers run optimizers that they do not know, whose steps a client has traced."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

import stratagem
from stratagem import DistributedOptimizer
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running
from tests.client.parameter_server import own_optimizers as own
from tests.full import a_few
from tests.nests import same_bytes

STEPS = 6
ELEMENTWISE = (
    own.Lion,
    own.CountingAdam,
    own.ReplacedState,
    own.WritesGradient,
    own.ClippedAdamW,
    own.DecayedSGD,
)
OF_WHOLE_VARIABLES = (own.Trust, own.muon)
MAKES: tuple[Any, ...] = (
    *((make, 0) for make in (*ELEMENTWISE, *OF_WHOLE_VARIABLES)),
    *((make, 2) for make in (own.CountingAdam, own.ClippedAdamW)),
    *(
        pytest.param(make, 2, marks=pytest.mark.full("two others are divided in the same way"))
        for make in (own.Lion, own.ReplacedState, own.WritesGradient, own.DecayedSGD)
    ),
)


def step(model: nn.Module, optimizer: Any, batch: Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def batches(steps: int = STEPS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return list(torch.randn(steps, 4, 6, generator=generator))


def linear(has_bias: bool = True) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(6, 5, bias=has_bias)


def in_shards(number: int) -> dict[str, Any]:
    return {"variable_partitioner": FixedShardsPartitioner(number)} if number else {}


@a_few("make,shards", MAKES, "updates of any optimizer are traced in one way", 4)
def test_an_optimizer_of_the_users_trains_as_it_does_locally(
    make: Callable[..., Any], shards: int
) -> None:
    reference = linear(has_bias=make is not own.muon)
    # From the first one of a class on, torch notes its steps for profilers.
    torch.optim.SGD(reference.parameters())
    torch.optim.AdamW(reference.parameters())
    with running(num_servers=2) as cluster, cluster.strategy(**in_shards(shards)) as strategy:
        with strategy.scope():
            model = copy.deepcopy(reference)
        optimizer = DistributedOptimizer(make(model.parameters()))
        plain = make(reference.parameters())
        rates = [ExponentialLR(one, 0.9) for one in (optimizer, plain)]
        for batch in batches():
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
            for rate in rates:
                rate.step()
        assert same_bytes(model.state_dict(), reference.state_dict())
        assert same_bytes(optimizer.state_dict(), without_empty_state(plain.state_dict()))


def without_empty_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict without what looking for state has left."""
    state = {index: own for index, own in state_dict["state"].items() if own}
    return {**state_dict, "state": state}


def test_param_groups_have_their_own_hyperparameters() -> None:
    reference = nn.Sequential(linear(), nn.Linear(5, 5))

    def groups(model: Any) -> Any:
        return [
            {"params": model[0].parameters(), "lr": 0.02, "weight_decay": 0},
            {"params": model[1].parameters()},
        ]

    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = copy.deepcopy(reference)
        optimizer = DistributedOptimizer(own.Lion(groups(model)))
        plain = own.Lion(groups(reference))
        for batch in batches():
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
        assert same_bytes(model.state_dict(), reference.state_dict())


def test_the_state_goes_through_a_state_dict() -> None:
    reference, first = linear(), batches(3)
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = copy.deepcopy(reference)
        plain = own.CountingAdam(reference.parameters())
        for batch in first:
            step(reference, plain, batch)
        optimizer = DistributedOptimizer(own.CountingAdam(model.parameters()))
        strategy.run(step, (model, optimizer, first[0]))
        model.load_state_dict(reference.state_dict())
        optimizer.load_state_dict(plain.state_dict())
        for batch in batches():
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
        assert same_bytes(model.state_dict(), reference.state_dict())
        assert same_bytes(optimizer.state_dict(), plain.state_dict())


def test_the_state_comes_back_from_a_checkpoint_on_other_servers(tmp_path: Path) -> None:
    reference, all_batches = linear(), batches(8)
    plain = own.CountingAdam(reference.parameters())
    for batch in all_batches:
        step(reference, plain, batch)
    folder = str(tmp_path / "checkpoint")
    for servers, shards, part in ((2, 2, all_batches[:4]), (1, 0, all_batches[4:])):
        with (
            running(num_servers=servers) as cluster,
            cluster.strategy(**in_shards(shards)) as strategy,
        ):
            with strategy.scope():
                model = linear()
            optimizer = DistributedOptimizer(own.CountingAdam(model.parameters()))
            if servers == 1:
                strategy.restore(folder)
            for batch in part:
                strategy.run(step, (model, optimizer, batch))
            strategy.save(folder)
            trained = copy.deepcopy(model.state_dict()), optimizer.state_dict()
    assert same_bytes(trained[0], reference.state_dict())
    assert same_bytes(trained[1], plain.state_dict())


def test_workers_take_synchronous_steps_with_an_optimizer_of_the_users() -> None:
    initial, reference = linear(), linear()
    plain = own.Lion(reference.parameters())

    def train(strategy: stratagem.ParameterServerStrategy, worker: int) -> Any:
        with strategy.scope():
            model = copy.deepcopy(initial)
        optimizer = DistributedOptimizer(own.Lion(model.parameters()))
        for batch in batches():
            strategy.run(step, (model, optimizer, batch))
        return copy.deepcopy(model.state_dict())

    with running(num_servers=2, num_workers=2) as cluster:
        one, other = cluster.run(train, consistency="sync")
    for batch in batches():
        step(reference, plain, batch)
    assert same_bytes(one, other)
    # Equal gradients have an exact mean.
    assert same_bytes(one, reference.state_dict())


RATE = {"of": 0.5}


class RateElsewhere(own.Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(grad, alpha=RATE["of"])


def test_a_number_that_the_code_finds_elsewhere_may_change_between_steps() -> None:
    reference = linear()
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = copy.deepcopy(reference)
        optimizer = DistributedOptimizer(RateElsewhere(model.parameters()))
        plain = RateElsewhere(reference.parameters())
        for number, batch in enumerate(batches()):
            RATE["of"] = 0.5 / (number + 1)
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
        assert same_bytes(model.state_dict(), reference.state_dict())


@contextmanager
def refused(
    what: str,
    kind: type[stratagem.StratagemError] = stratagem.InvalidArgumentError,
    has_bias: bool = True,
    shards: int = 0,
) -> Iterator[tuple[nn.Module, pytest.ExceptionInfo[stratagem.StratagemError]]]:
    """A model on servers, with which the block does what is refused, and the refusal."""
    with (
        running(num_servers=max(1, shards)) as cluster,
        cluster.strategy(**in_shards(shards)) as strategy,
    ):
        with strategy.scope():
            model = linear(has_bias)
        with pytest.raises(kind, match=what) as caught:
            yield model, caught


REFUSED = (
    (own.Branching, "a branch"),
    (own.BranchingOnCount, "a branch depends on"),
    (own.CountingInSelf, "assigns self.count"),
    (own.CountingInGroup, r"changes param_groups\[...\]\['k'\]"),
    (own.CountingInModule, r"changes \"COUNTS\['steps'\]\""),
    (own.LateState, "'second' is absent after the first step"),
    (own.KeptGradient, r"'last' shares its memory .* clone\(\)"),
    (own.Factored, r"'rows' has the shape \[5\]"),
    (own.Swallowing, "a branch"),
    (own.NeedsClosure, "closure"),
    (own.Random, "not on the allow-list"),
)


@pytest.mark.parametrize(("kind", "what"), REFUSED)
def test_what_servers_cannot_do_is_refused_with_its_line(kind: Any, what: str) -> None:
    with refused(what, stratagem.UpdateFunctionError) as (model, caught):
        DistributedOptimizer(kind(model.parameters()))
    assert "own_optimizers.py:" in caught.value.message


NOT_SEPARATE = (
    (own.ClippingAll, "depends on another one, .* by its gradient"),
    (own.CountingParameters, "steps a parameter otherwise where it has others"),
    (own.ByTheirOrder, "steps a parameter otherwise where it has others"),
    (own.RateOfTheFirstGroup, "depends on another one, .* by lr"),
)


@pytest.mark.parametrize(("kind", "what"), NOT_SEPARATE)
def test_what_depends_on_other_parameters_is_refused(kind: Any, what: str) -> None:
    with refused(what, stratagem.UpdateFunctionError) as (model, caught):
        DistributedOptimizer(kind([{"params": [one], "lr": 0.1} for one in model.parameters()]))
    assert "own_optimizers.py:" in caught.value.message


def test_a_group_that_is_added_may_not_change_how_others_are_stepped() -> None:
    reference = linear()
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = copy.deepcopy(reference)
        # A single parameter has no others.
        optimizer = DistributedOptimizer(own.ClippingAll([model.weight]))
        plain = own.ClippingAll([reference.weight])
        for batch in batches(2):
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
        assert same_bytes(model.state_dict(), reference.state_dict())
        with pytest.raises(stratagem.UpdateFunctionError, match="depends on another one"):
            optimizer.add_param_group({"params": [model.bias]})
        assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("make", OF_WHOLE_VARIABLES)
def test_an_optimizer_that_needs_whole_variables_is_refused_for_parts(make: Any) -> None:
    with refused("'weight', which is in several", has_bias=False, shards=2) as (model, _):
        DistributedOptimizer(make(model.parameters()))


def test_lbfgs_is_refused_with_its_reason() -> None:
    with refused("LBFGS computes the loss several") as (model, _):
        DistributedOptimizer(torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_of_the_users_cannot_overlap() -> None:
    with refused("overlap=True needs") as (model, _):
        DistributedOptimizer(own.Lion(model.parameters()), overlap=True)


def test_tables_cannot_be_stepped_by_an_optimizer_of_the_users() -> None:
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            table = nn.Embedding(5, 3, sparse=True)
        with pytest.raises(stratagem.InvalidArgumentError, match="step the rows of tables"):
            DistributedOptimizer(own.Lion(table.parameters()))


def test_a_gradient_of_rows_cannot_be_applied_by_an_optimizer_of_the_users() -> None:
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = linear(has_bias=False)
        optimizer = DistributedOptimizer(own.Lion(model.parameters()))

        def sparse_step() -> None:
            model.weight.grad = torch.eye(5, 6).to_sparse(1)
            optimizer.step()

        with pytest.raises(stratagem.InvalidArgumentError, match="a gradient of rows"):
            strategy.run(sparse_step)


def test_other_strategies_name_what_they_step() -> None:
    strategy = stratagem.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        model = linear()
    with pytest.raises(stratagem.InvalidArgumentError, match="use ParameterServerStrategy"):
        DistributedOptimizer(own.Lion(model.parameters()))


def test_without_a_strategy_any_optimizer_steps_by_itself() -> None:
    one, other = linear(), linear()
    optimizer, plain = (
        DistributedOptimizer(own.Random(one.parameters())),
        own.Random(other.parameters()),
    )
    for model, stepping in ((one, optimizer), (other, plain)):
        torch.manual_seed(1)
        step(model, stepping, batches(1)[0])
    assert same_bytes(one.state_dict(), other.state_dict())


class BranchingOnRate(own.Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(grad, alpha=group["lr"] if group["lr"] > 0.006 else 0.5)


def test_a_branch_on_a_hyperparameter_follows_its_changes() -> None:
    reference = linear()
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = copy.deepcopy(reference)
        optimizer = DistributedOptimizer(BranchingOnRate(model.parameters()))
        plain = BranchingOnRate(reference.parameters())
        rates = [ExponentialLR(one, 0.8) for one in (optimizer, plain)]
        for batch in batches():
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
            for rate in rates:
                rate.step()
        assert optimizer.param_groups[0]["lr"] < 0.006
        assert same_bytes(model.state_dict(), reference.state_dict())


def test_a_replaced_step_is_refused() -> None:
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = linear()
        optimizer = own.Lion(model.parameters())
        vars(optimizer)["step"] = lambda: None
        with pytest.raises(stratagem.UpdateFunctionError, match="replaced by another function"):
            DistributedOptimizer(optimizer)

"""One worker over two server processes computes what a local loop computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stratagem
from stratagem_deploy import LocalCluster
from tests.nests import same_bytes

pytestmark = pytest.mark.cluster

STEPS = 60

DEFAULT_KERNELS: dict[str, Any] = {
    "SGD": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": partial(torch.optim.Adam, weight_decay=0.01),
    "AdamW": partial(torch.optim.AdamW, amsgrad=True),
    "Adagrad": partial(torch.optim.Adagrad, lr_decay=0.01),
    "RMSprop": partial(torch.optim.RMSprop, centered=True, momentum=0.5),
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
}
FUSED_KERNELS = {
    f"fused {name}": partial(DEFAULT_KERNELS[name], fused=True)
    for name in ("SGD", "Adam", "AdamW", "Adagrad")
}
OPTIMIZERS: dict[str, Any] = DEFAULT_KERNELS | FUSED_KERNELS


class OddSizes(nn.Module):
    """Eight parameters of sizes that divide into nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(7, 13), nn.Tanh(), nn.LayerNorm(13), nn.Linear(13, 5), nn.Tanh()
        )
        self.head = nn.Linear(5, 1)

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.head(self.net(features))
        return output


@pytest.fixture(scope="module")
def strategy() -> Iterator[stratagem.ParameterServerStrategy]:
    with (
        LocalCluster(ps=2, workers=1, processes=True) as cluster,
        stratagem.ParameterServerStrategy(cluster.resolver("worker", 0)) as strategy,
    ):
        yield strategy


def made_for(model: nn.Module, make: Any) -> torch.optim.Optimizer:
    """The optimizer under test, with two param groups."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer: torch.optim.Optimizer = make(
        [{"params": weights}, {"params": rest, "lr": 0.003}], lr=0.01
    )
    return optimizer


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Callable[..., Any],
    steps: int = STEPS,
) -> None:
    """Trains with clipping and a schedule; `run` calls the step function."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)
    batches = torch.randn(steps, 11, 7, generator=torch.Generator().manual_seed(1))

    def step(features: Tensor) -> None:
        optimizer.zero_grad()
        (model(features) - features.sum(1, keepdim=True)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for features in batches:
        run(step, (features,))
        schedule.step()


def locally(step: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    step(*args)


prefixes = (f"model{number}" for number in count())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_and_optimizer_state_equal_a_local_loop(
    strategy: stratagem.ParameterServerStrategy, name: str
) -> None:
    torch.manual_seed(0)
    reference = OddSizes()
    with strategy.scope(name=next(prefixes)):
        model = copy.deepcopy(reference)
    optimizer = stratagem.DistributedOptimizer(made_for(model, OPTIMIZERS[name]))
    reference_optimizer = made_for(reference, OPTIMIZERS[name])

    trained(model, optimizer, strategy.run)
    trained(reference, reference_optimizer, locally)

    assert len(list(model.parameters())) >= 8
    assert same_bytes(dict(model.state_dict()), dict(reference.state_dict()))
    assert same_bytes(optimizer.state_dict(), reference_optimizer.state_dict())


def test_a_state_loaded_after_the_scope_is_what_training_starts_from(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    reference, other = OddSizes(), OddSizes()
    with strategy.scope(name=next(prefixes)):
        model = copy.deepcopy(other)
    make = OPTIMIZERS["Adam"]
    optimizer = stratagem.DistributedOptimizer(made_for(model, make))

    model.load_state_dict(reference.state_dict())
    trained(model, optimizer, strategy.run, 20)
    trained(reference, made_for(reference, make), locally, 20)

    assert same_bytes(dict(model.state_dict()), dict(reference.state_dict()))

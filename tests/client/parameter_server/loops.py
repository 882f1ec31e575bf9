"""Training loops that know nothing of strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

import stratagem
from stratagem import DistributedOptimizer

Parameters: TypeAlias = Sequence[nn.Parameter]
Make: TypeAlias = Callable[[Parameters], Optimizer]
Optimizing: TypeAlias = Callable[[nn.Module], Optimizer]
Loop: TypeAlias = Callable[[Sequence[nn.Module], Optimizing], None]

STEPS = 6

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda some: torch.optim.SGD(some, lr=0.05, momentum=0.9),
    "Adam": lambda some: torch.optim.Adam(some, lr=0.02),
    "AdamW": lambda some: torch.optim.AdamW(some, lr=0.02, weight_decay=0.1),
    "Adagrad": lambda some: torch.optim.Adagrad(some, lr=0.1),
    "RMSprop": lambda some: torch.optim.RMSprop(some, lr=0.01, momentum=0.5),
    "Adamax": lambda some: torch.optim.Adamax(some, lr=0.02),
    "NAdam": lambda some: torch.optim.NAdam(some, lr=0.02),
    "Adadelta": lambda some: torch.optim.Adadelta(some, lr=1.0),
}


def noise(number: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number))


def networks() -> list[nn.Module]:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return [first, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))]


def plain(modules: Sequence[nn.Module], optimizing: Optimizing) -> None:
    """One network, one optimizer."""
    network, _ = modules
    optimizer = optimizing(network)
    for number in range(STEPS):
        optimizer.zero_grad()
        network(noise(number, 8, 4)).square().mean().backward()
        optimizer.step()


def by_reference(modules: Sequence[nn.Module], optimizing: Optimizing) -> None:
    """The parameters are looked up once, before the loop."""
    network, _ = modules
    optimizer = optimizing(network)
    named = dict(network.named_parameters())
    for number in range(STEPS):
        hidden = (noise(number, 8, 4) @ named["0.weight"].t() + named["0.bias"]).tanh()
        (hidden @ named["2.weight"].t() + named["2.bias"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def adversaries(modules: Sequence[nn.Module], optimizing: Optimizing) -> None:
    """A GAN: what the generator made is differentiated after the critic's step."""
    generator, critic = modules
    generating, judging = optimizing(generator), optimizing(critic)
    for number in range(STEPS):
        made, real = generator(noise(number, 8, 4)), noise(-1 - number, 8, 3)
        judging.zero_grad()
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        judging.step()
        generating.zero_grad()
        critic(made).mean().neg().backward()
        generating.step()


def actor_and_critic(modules: Sequence[nn.Module], optimizing: Optimizing) -> None:
    """Both graphs are there before either step."""
    actor, critic = modules
    acting, judging = optimizing(actor), optimizing(critic)
    for number in range(STEPS):
        scores = actor(noise(number, 8, 4)).log_softmax(dim=1)
        advantage = noise(-1 - number, 8, 1) - critic(scores.detach())
        for optimizer in (acting, judging):
            optimizer.zero_grad()
        judged, acted = advantage.square().mean(), scores[:, :1] * advantage.detach()
        judged.backward()
        judging.step()
        acted.mean().neg().backward()
        acting.step()


LOOPS: Sequence[Loop] = (plain, by_reference, adversaries, actor_and_critic)


def in_bytes(modules: Sequence[nn.Module]) -> list[bytes]:
    parameters = [p for module in modules for p in module.parameters()]
    return [p.detach().numpy().tobytes() for p in parameters]


def expected(loop: Loop, make: Make) -> list[bytes]:
    modules = networks()
    loop(modules, lambda module: make([*module.parameters()]))
    return in_bytes(modules)


def found(strategy: stratagem.Strategy, loop: Loop, make: Make, in_run: bool) -> list[bytes]:
    with strategy.scope():
        modules = networks()

    def optimizing(module: nn.Module) -> Optimizer:
        return DistributedOptimizer(make([*module.parameters()]))

    if in_run:
        strategy.run(loop, args=(modules, optimizing))
    else:
        loop(modules, optimizing)
    return in_bytes(modules)

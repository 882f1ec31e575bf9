"""Optimizers that torch does not have, written as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer


class Stepping(Optimizer):
    """Steps each parameter that has a gradient by `update`."""

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, {**self.own_defaults, **defaults})

    own_defaults: dict[str, Any] = {"lr": 0.01}  # noqa: RUF012 - read only

    def step(self, closure: Any = None) -> Any:
        for group, parameter in self.with_gradient():
            with torch.no_grad():
                self.update(parameter, parameter.grad, self.state[parameter], group)

    def with_gradient(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield group, parameter

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        raise NotImplementedError


class Lion(Stepping):
    """Tensor state, made lazily; decay in a branch on a hyperparameter."""

    own_defaults = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}  # noqa: RUF012

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["exp_avg"] = torch.zeros_like(p)
        first, second = group["betas"]
        if group["weight_decay"] != 0:
            p.data.mul_(1 - group["lr"] * group["weight_decay"])
        direction = state["exp_avg"].mul(first).add(grad, alpha=1 - first).sign_()
        p.add_(direction, alpha=-group["lr"])
        state["exp_avg"].mul_(second).add_(grad, alpha=1 - second)


class CountingAdam(Stepping):
    """A count that is a Python number, and `math` on what follows from it."""

    own_defaults = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}  # noqa: RUF012

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if len(state) == 0:
            state["step"], state["mean"], state["square"] = 0, p * 0, p * 0
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(grad, 1 - first)
        state["square"].mul_(second).addcmul_(grad, grad, value=1 - second)
        scale = math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
        denominator = state["square"].sqrt().add_(group["eps"])
        p.data.addcdiv_(state["mean"], denominator, value=-group["lr"] * scale)


class ReplacedState(Stepping):
    """State that each step replaces: a tensor, and a float that is no count."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        weight = state.get("weight", 0.0) * 0.9 + 1.0
        mean = state.get("mean", torch.zeros_like(grad))
        state["mean"] = mean + (grad - mean) / weight
        state["weight"] = weight
        p.sub_(group["lr"] * state["mean"])


class WritesGradient(Stepping):
    """Uses the gradient as scratch memory, and has no state."""

    own_defaults = {"lr": 0.1, "decay": 0.01}  # noqa: RUF012

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        grad.add_(p, alpha=group["decay"]).clamp_(-0.05, 0.05)
        p.add_(grad, alpha=-group["lr"])


class ClippedAdamW(torch.optim.AdamW):
    """A subclass of one of torch.optim, whose count is a tensor that it asks for its number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.clamp_(-0.1, 0.1)
        return super().step(closure)


class DecayedSGD(torch.optim.SGD):
    """A subclass that does something after the step of its base."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - 0.1 * group["lr"])
        return loss


class Trust(Stepping):
    """Scales by norms, so that no part of a parameter is stepped as the whole."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        ratio = torch.where(p.norm() > 0, p.norm() / grad.norm(), 1.0)
        p.add_(grad * ratio, alpha=-group["lr"])


def muon(params: Any) -> Optimizer:
    return torch.optim.Muon(params, lr=0.02)


# What is refused.


class Branching(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if grad.norm() > 1:
            p.sub_(grad)
        p.sub_(grad, alpha=group["lr"])


class BranchingOnCount(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["step"] = state.get("step", 0) + 1
        p.sub_(grad, alpha=group["lr"] if state["step"] > 3 else 0.0)


class CountingInSelf(Stepping):
    count = 0

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        self.count += 1
        p.sub_(grad, alpha=group["lr"])


class CountingInGroup(Stepping):
    own_defaults = {"lr": 0.1, "k": 0}  # noqa: RUF012

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        group["k"] += 1
        p.sub_(grad, alpha=group["lr"])


COUNTS = {"steps": 0}


class CountingInModule(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        COUNTS["steps"] += 1
        p.sub_(grad, alpha=group["lr"])


class LateState(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if "first" in state:
            state["second"] = torch.zeros_like(p)
        state["first"] = grad.clone()
        p.sub_(grad, alpha=group["lr"])


class KeptGradient(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["last"] = grad
        p.sub_(grad, alpha=group["lr"])


class Factored(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["rows"] = grad.square().mean(-1)
        p.sub_(grad, alpha=group["lr"])


class Swallowing(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        try:
            large = bool(grad.norm() > 1)
        except Exception:
            large = False
        p.sub_(grad, alpha=1.0 if large else group["lr"])


class NeedsClosure(Stepping):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return closure()


class Random(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(grad + torch.randn_like(p))


# What is refused because a parameter is not stepped by itself.


class ClippingAll(Stepping):
    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            total = sum(p.grad.square().sum() for _, p in self.with_gradient())
            for group, p in self.with_gradient():
                p.sub_(p.grad / (1 + total.sqrt()), alpha=group["lr"])


class CountingParameters(Stepping):
    def step(self, closure: Any = None) -> Any:
        number = sum(len(group["params"]) for group in self.param_groups)
        for group, p in self.with_gradient():
            with torch.no_grad():
                p.sub_(p.grad, alpha=group["lr"] * number)


class ByTheirOrder(Stepping):
    def step(self, closure: Any = None) -> Any:
        for number, (group, p) in enumerate(self.with_gradient()):
            with torch.no_grad():
                p.sub_(p.grad, alpha=group["lr"] * (number + 1))


class RateOfTheFirstGroup(Stepping):
    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        p.sub_(grad, alpha=self.param_groups[0]["lr"])

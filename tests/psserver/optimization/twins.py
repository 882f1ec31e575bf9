"""Optimizers on a server, and the same ones here, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.wire import model_spec, optimizer_program

SHAPES = [(7, 3), (5,), (1,), (2, 3, 4), (33,), (0, 3), ()]
STEPS = 12

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain SGD": ("SGD", {"lr": 0.1}),
    "SGD with Nesterov momentum": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "SGD with dampening": ("SGD", {"momentum": 0.9, "dampening": 0.5, "foreach": True}),
    "fused SGD": ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "Adam": ("Adam", {"maximize": True, "weight_decay": 0.01}),
    "foreach Adam": ("Adam", {"amsgrad": True, "foreach": True}),
    "fused Adam": ("Adam", {"amsgrad": True, "fused": True}),
    "AdamW": ("AdamW", {"amsgrad": True, "betas": (0.8, 0.99)}),
    "fused AdamW": ("AdamW", {"fused": True}),
    "Adagrad": ("Adagrad", {"initial_accumulator_value": 0.5, "lr_decay": 0.1}),
    "fused Adagrad": ("Adagrad", {"fused": True}),
    "RMSprop": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "plain RMSprop": ("RMSprop", {}),
    "Adamax": ("Adamax", {"foreach": True}),
    "NAdam": ("NAdam", {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    "foreach NAdam": ("NAdam", {"foreach": True}),
    "RAdam": ("RAdam", {"weight_decay": 0.01}),
    "foreach RAdam": ("RAdam", {"foreach": True}),
    "Adadelta": ("Adadelta", {}),
    "Rprop": ("Rprop", {}),
    "ASGD": ("ASGD", {"t0": 3.0}),
    "foreach ASGD": ("ASGD", {"foreach": True}),
    "row-wise Adagrad": ("RowWiseAdagrad", {"weight_decay": 0.1, "eps": 1e-4}),
    "plain row-wise Adagrad": ("RowWiseAdagrad", {"lr": 0.1, "maximize": True}),
}


class Twin:
    """The same variables hosted and local, stepped with the same gradients."""

    def __init__(self, make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.local = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        self.optimizer = make(list(self.local))
        self.store = VariableStore()
        self.optimizers = Optimizers(self.store)
        for index, parameter in enumerate(self.local):
            value = parameter.detach().clone()
            self.store.create([model_spec(f"v{index}", value)], [value])

    def step(self, without: int = -1) -> None:
        gradients = []
        for index, parameter in enumerate(self.local):
            parameter.grad = None if index == without else torch.randn_like(parameter)
            if parameter.grad is not None:
                group = self._group_of(parameter)
                value = parameter.grad.clone()
                gradients.append(Gradient(f"v{index}", group, value))
        run(self.optimizers, optimizer_program(self.optimizer), gradients)
        self.optimizer.step()

    def _group_of(self, parameter: torch.Tensor) -> int:
        groups = self.optimizer.param_groups
        return next(
            index
            for index, group in enumerate(groups)
            if any(each is parameter for each in group["params"])
        )

    def check(self) -> None:
        """Parameters and state have the same names and bytes on both sides."""
        name = type(self.optimizer).__name__
        for index, parameter in enumerate(self.local):
            assert torch.equal(self.store.get(f"v{index}").value, parameter)
            state = self.optimizer.state[parameter]
            slots = {f"v{index}/{name}/{key}": value for key, value in state.items()}
            assert self.store.slots(f"v{index}") == list(slots)
            for slot, value in slots.items():
                hosted = self.store.get(slot).value
                assert hosted.dtype == value.dtype
                assert torch.equal(hosted, value)


def run(optimizers: Optimizers, program: OptimizerProgram, gradients: list[Gradient]) -> list[int]:
    step = optimizers.prepare(program, gradients)
    step.run()
    return optimizers.commit(step)


def hosting(**values: torch.Tensor) -> tuple[VariableStore, Optimizers]:
    store = VariableStore()
    specs = [model_spec(name, value) for name, value in values.items()]
    store.create(specs, [value.clone() for value in values.values()])
    return store, Optimizers(store)

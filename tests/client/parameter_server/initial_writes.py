"""Ways to write the parameter of a module that has no memory."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stratagem import ParameterServerStrategy
from tests.distributions import assert_same

ROWS, COLUMNS = 400, 50
ALL = torch.arange(ROWS)

Init = Callable[[Any], object]


class Table(nn.Module):
    """A table that a user wrote."""

    def __init__(self, *inits: Init, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        for one in inits:
            one(self.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self.weight)


def embedding(*inits: Init) -> nn.Embedding:
    """An embedding of torch, which has initialised it already."""
    made = nn.Embedding(ROWS, COLUMNS, padding_idx=3)
    for one in inits:
        one(made.weight)
    return made


def rows_on_servers(
    strategy: ParameterServerStrategy, build: Callable[[], nn.Module]
) -> torch.Tensor:
    """What servers make of the rows of a module that has no memory."""
    with strategy.scope(meta_above=1000):
        module = build()
    found: torch.Tensor = module(ALL).detach()
    return found


def assert_as_torch_has_them(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check the distribution of rows, and which of them are zero."""
    assert_same(found, expected)
    assert torch.equal((found == 0).all(1), (expected == 0).all(1))


def left_out_on_meta(weight: nn.Parameter) -> None:
    """As functions of other packages do it."""
    if not weight.is_meta and weight.device.type != "meta":
        weight.data.uniform_(3.0, 4.0)


def in_another_thread(weight: nn.Parameter) -> None:
    thread = threading.Thread(target=lambda: weight.data.uniform_(3.0, 4.0))
    thread.start()
    thread.join()


def beneath_overrides(weight: nn.Parameter) -> None:
    with torch._C.DisableTorchFunction():
        weight.data.uniform_(3.0, 4.0)


def assigned(weight: nn.Parameter) -> None:
    weight.data[:] = 2.0


def given_memory(weight: nn.Parameter) -> None:
    weight.data = torch.rand(ROWS, COLUMNS)


def loaded(weight: nn.Parameter) -> None:
    nn.utils.vector_to_parameters(torch.rand(ROWS * COLUMNS), [weight])


RECORDED: dict[str, Init] = {
    "method": lambda weight: weight.data.uniform_(-1, 1),
    "zero": lambda weight: weight.data.zero_(),
    "transposed": lambda weight: weight.data.T.normal_(1.0, 2.0),
    "flat": lambda weight: weight.data.view(-1).uniform_(2.0, 3.0),
    "a tensor": lambda weight: weight.data.fill_(torch.tensor(3.0)),
    "one number": lambda weight: weight.data.copy_(torch.tensor(3.0)),
    "nothing": lambda weight: weight.data[:0].fill_(3.0),
    **{
        one.__name__: one
        for one in (
            left_out_on_meta,
            in_another_thread,
            beneath_overrides,
            assigned,
            given_memory,
            loaded,
        )
    },
}


def multiplied(weight: nn.Parameter) -> None:
    weight.data *= 0.5


def two_rows_of_zeros(weight: nn.Parameter) -> None:
    weight.data[0].zero_()
    weight.data[1].zero_()


def in_place_of_gradients(weight: nn.Parameter) -> None:
    with torch.no_grad():
        torch._foreach_mul_([weight], 0.5)


REFUSED: dict[str, tuple[str, Init]] = {
    "copied": ("copy_", lambda weight: weight.data.copy_(torch.ones(ROWS, COLUMNS))),
    "multiplied": ("mul_", multiplied),
    "in a list": ("foreach_mul_", in_place_of_gradients),
    "a column": ("fill_", lambda weight: weight.data[:, 0].fill_(1.0)),
    "half": ("fill_", lambda weight: weight.data[: ROWS // 2].fill_(1.0)),
    "two rows": ("zero_", two_rows_of_zeros),
    "as integers": ("fill_", lambda weight: weight.data.view(torch.int32).fill_(7)),
    "drawn": ("bernoulli_", lambda weight: weight.data.bernoulli_(0.5)),
    "out": ("eye", lambda weight: torch.eye(ROWS, COLUMNS, out=weight.data)),
    "drawn out": (
        "normal",
        lambda weight: torch.normal(0.0, 1.0, weight.shape, out=weight.data),
    ),
    "clamped out": ("clamp", lambda weight: torch.clamp(weight.data, 0, 1, out=weight.data)),
    "normalised": ("norm", lambda weight: functional.normalize(weight.data, out=weight.data)),
    "read": ("mul", lambda weight: weight.data * 2),
    "copy": ("clone", copy.deepcopy),
    "other type": ("_to_copy", lambda weight: weight.data.half()),
    "memory": ("numpy", lambda weight: weight.data.numpy()),
    "address": ("data_ptr", lambda weight: weight.data_ptr()),
    "pickled": ("__reduce_ex__", pickle.dumps),
    "looked up": ("embedding", lambda weight: functional.embedding(ALL, weight)),
    "clipped": ("renorm", lambda weight: torch.embedding_renorm_(weight.data, ALL, 1.0, 2.0)),
}

"""Workers that run functions by name, and load no code that travels."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stratagem
from stratagem import ClosureInputError, PermissionDeniedError
from stratagem._shipping.import_allowlist import NamedCode
from stratagem._shipping.pickling import SessionClasses
from tests.client.coordinator import importable_steps as steps
from tests.client.coordinator.coordination import Coordination, coordinating

MODULE = steps.__name__


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    """Workers that run the functions of one module."""
    with coordinating(num_workers=2, importable_only=[MODULE]) as found:
        yield found


def test_functions_of_a_listed_module_train(coordination: Coordination) -> None:
    coordinator = coordination.coordinator
    # Of some initial values, nothing is left behind the ReLU.
    torch.manual_seed(0)
    with coordination.strategy.scope():
        model, counter = steps.Model(), stratagem.Variable(0.0)
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = stratagem.DistributedOptimizer(adam)
    iterator = iter(coordinator.create_per_worker_dataset(steps.batches))
    args = (model, optimizer, iterator, counter)
    losses = [coordinator.schedule(steps.step, args=args) for _ in range(60)]
    first = coordinator.schedule(steps.total, args=(losses[0],), kwargs={"more": 1.0})
    last = coordinator.schedule(steps.total, args=tuple(losses[-4:]))
    assert last.fetch() / 4 < first.fetch() - 1.0
    coordinator.join()
    assert counter.numpy() == 60


@pytest.mark.parametrize(
    "value",
    [None, 1 << 100, -1.5, "text", b"bytes", [1, (2, {3})], {"a": torch.ones(2)}, torch.float16],
    ids=repr,
)
def test_arguments_are_numbers_strings_tensors_and_nests(
    coordination: Coordination, value: Any
) -> None:
    returned = coordination.coordinator.schedule(steps.kept, args=(value,)).get()
    assert repr(returned) == repr(value)


class Elsewhere(nn.Module):
    """A class of a module that is not listed."""


def elsewhere() -> None: ...


def calls(coordination: Coordination) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
    with coordination.strategy.scope():
        model = Elsewhere()
        model.weight = nn.Parameter(torch.ones(1))
    return {
        "a lambda": (lambda: 1, ()),
        "a function of another module": (elsewhere, ()),
        "a function of Python": (os.mkdir, ("/no/such/folder",)),
        "what the module has from elsewhere": (steps.system, ("true",)),
        "an object": (steps.kept, (Fraction(1, 3),)),
        "an array": (steps.kept, (np.ones(2),)),
        "a function as an argument": (partial(steps.kept, elsewhere), ()),
        "a module of another class": (steps.kept, (model,)),
        "a method": (steps.Model().forward, (torch.ones(1, 2),)),
    }


@pytest.mark.parametrize(
    "what",
    [
        "a lambda",
        "a function of another module",
        "a function of Python",
        "what the module has from elsewhere",
        "an object",
        "an array",
        "a function as an argument",
        "a module of another class",
        "a method",
    ],
)
def test_everything_else_is_refused_by_name(coordination: Coordination, what: str) -> None:
    coordinator = coordination.coordinator
    function, args = calls(coordination)[what]
    with pytest.raises(ClosureInputError, match="loads no code from others") as caught:
        coordinator.schedule(function, args=args).fetch()
    assert isinstance(caught.value.original_exception, PermissionDeniedError)
    with pytest.raises(ClosureInputError):
        coordinator.join()


class Reduced:
    """Is pickled as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def read(payload: bytes) -> Any:
    return NamedCode([MODULE]).read(payload, lambda handle: handle, SessionClasses())


@pytest.mark.parametrize(
    "call",
    [
        (os.system, ("true",)),
        (Path.touch, (Path("sprung"),)),
        (steps.touched, ("sprung",)),  # while it is read, nothing is called
        (nn.Linear, (1, 1)),
        (getattr, (steps.touched, "__globals__")),
        (eval, ("1",)),
        (pickle.loads, (b"N.",)),
    ],
    ids=lambda call: call[0].__qualname__,
)
def test_no_message_calls_anything(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PermissionDeniedError):
        read(pickle.dumps(Reduced(*call), protocol=5))
    assert not [*tmp_path.iterdir()]


def test_no_message_changes_a_function() -> None:
    state = Reduced(stratagem.consistency.Async, (), (None, {"__defaults__": ("sprung",)}))
    with pytest.raises(PermissionDeniedError, match="an object that travels by value"):
        read(pickle.dumps(state, protocol=5))


@pytest.mark.parametrize("protocol", range(6))
def test_no_message_makes_objects_of_a_class(protocol: int) -> None:
    with pytest.raises(PermissionDeniedError):
        read(pickle.dumps(steps.Model(), protocol=protocol))


@pytest.mark.parametrize(
    "name",
    [
        "system",
        "os.system",
        "Path",
        "Model.forward.__globals__",
        "Model.__base__",
        "DATA",
        "no",
    ],
)
def test_a_listed_module_gives_what_it_defines_itself(name: str) -> None:
    payload = b"\x80\x05\x8c" + bytes([len(MODULE)]) + MODULE.encode()
    payload += b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    with pytest.raises(PermissionDeniedError):
        read(payload)


def test_packages_are_listed_with_what_is_in_them_and_not_with_what_begins_alike() -> None:
    payload = pickle.dumps(steps.total, protocol=5)
    found = NamedCode([MODULE.rpartition(".")[0]]).read(payload, lambda _: _, SessionClasses())
    assert found is steps.total
    with pytest.raises(PermissionDeniedError):
        NamedCode([MODULE[:-1]]).read(payload, lambda _: _, SessionClasses())

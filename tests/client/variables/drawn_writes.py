"""Writes to variables, drawn: what takes a value in, which value, and whose."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

import stratagem
from stratagem import (
    IndexedSlices,
    Mirrored,
    MirroredStrategy,
    PerReplica,
    StratagemError,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)

AGGREGATIONS = list(VariableAggregation)
ROWS = torch.tensor([0, 1])


def number() -> int:
    """Return the number of the running replica in this process, 0 outside of replicas."""
    context = stratagem.get_replica_context()
    return 0 if context is None else int(context.replica_id_in_sync_group or 0)


def _value(scale: float) -> torch.Tensor:
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * scale


def made(strategy: Strategy, scale: float, **traits: Any) -> Variable:
    """Return a variable of two rows."""
    with strategy.scope():
        return Variable(_value(scale), trainable=False, **traits)


def counted(strategy: Strategy, aggregation: VariableAggregation) -> Variable:
    """Return a variable that is synchronized ON_READ, into which each replica has written."""
    variable = made(
        strategy,
        0.0,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )
    strategy.run(lambda: variable.assign(_value(number() + 1.0)))
    return variable


class Write:
    """One write to a mirrored variable of `strategy`, drawn by a generator of random numbers.

    Another strategy, in this process alone, has variables of its own.
    """

    def __init__(self, strategy: Strategy, draw: random.Random, on_read: bool = True) -> None:
        self.strategy, self.draw = strategy, draw
        others = ["CPU:0", "CPU:1", "CPU:2"][: draw.randint(2, 3)]
        self.other = MirroredStrategy(others)
        sources = [name for name in _SOURCES if on_read or "counted" not in name]
        self.source, self.way = draw.choice(sources), draw.choice([*_WAYS])
        self.aggregation = draw.choice(AGGREGATIONS)
        self.target = made(strategy, 10.0, aggregation=self.aggregation)
        self.value = _SOURCES[self.source](self)

    def __repr__(self) -> str:
        return f"{self.way} of {self.source} with {self.aggregation.name}"

    def attempt(self) -> StratagemError | None:
        """Carry it out; return what refuses it."""
        try:
            _WAYS[self.way](self)
        except StratagemError as error:
            return error
        except (TypeError, RuntimeError, UserWarning):
            # What torch says of a value that its function does not take.
            assert self.way in _BY_TORCH, self
        return None

    def copies(self) -> list[torch.Tensor]:
        """Return what each copy of the target has."""
        return [copy.value().detach().clone() for copy in self.target.values]

    def everywhere(self, make: Callable[[int], Any], kind: Any) -> Any:
        return kind([make(index) for index in range(self.strategy.extended._num_local_replicas)])


_SOURCES: dict[str, Callable[[Write], Any]] = {
    "a number": lambda w: 2.0,
    "a tensor": lambda w: _value(2.0),
    "a list": lambda w: _value(2.0).tolist(),
    "its own counted": lambda w: counted(w.strategy, w.draw.choice(AGGREGATIONS)),
    "another's counted": lambda w: counted(w.other, w.draw.choice(AGGREGATIONS)),
    "its own mirrored": lambda w: made(w.strategy, 3.0),
    "another's mirrored": lambda w: made(w.other, 3.0),
    "equal PerReplica": lambda w: w.everywhere(lambda index: _value(5.0), PerReplica),
    "other PerReplica": lambda w: w.everywhere(lambda index: _value(index + 5.0), PerReplica),
    "PerReplica of another strategy": lambda w: PerReplica([_value(x) for x in (1.0, 2.0, 3.0)]),
    "equal Mirrored": lambda w: w.everywhere(lambda index: _value(5.0), Mirrored),
    "unequal Mirrored": lambda w: w.everywhere(lambda index: _value(index + 5.0), Mirrored),
    "Mirrored of another strategy": lambda w: Mirrored([_value(7.0)] * 3),
}


def _update(write: Write, fn: Callable[..., Any], *args: Any) -> None:
    write.strategy.extended.update(write.target, fn, args=args)


def _update_beside(write: Write, fn: Callable[[], Any]) -> None:
    extended = write.strategy.extended
    extended.update_non_slot(extended.non_slot_devices([write.target]), fn)


def _update_until(write: Write) -> None:
    calls: list[None] = []

    def fn(v: Variable) -> None:
        v.assign(write.value)
        calls.append(None)
        if len(calls) == 1:
            raise stratagem.CancelledError("in the midst")

    _update(write, fn)


def _slices(write: Write) -> IndexedSlices:
    return IndexedSlices(write.value, ROWS)


def _loaded(write: Write) -> None:
    write.strategy.load_state_dict({write.target.name: write.value}, strict=False)


def _started(write: Write) -> None:
    with write.strategy.scope():
        write.target = Variable(write.value, shape=None, aggregation=write.aggregation)


_BY_TORCH = ("copy_", "fill_", "out=", "foreach", "data", "a copy in place", "update in place")

_WAYS: dict[str, Callable[[Write], Any]] = {
    "assign": lambda w: w.target.assign(w.value),
    "assign_add": lambda w: w.target.assign_add(w.value),
    "assign_sub": lambda w: w.target.assign_sub(w.value),
    **{
        f"scatter_{name}": lambda w, name=name: getattr(w.target, f"scatter_{name}")(_slices(w))  # type: ignore[misc]
        for name in ("add", "sub", "mul", "div", "min", "max", "update")
    },
    "copy_": lambda w: w.target.copy_(w.value),
    "fill_": lambda w: w.target.fill_(w.value),
    "out=": lambda w: torch.add(w.value, 1.0, out=w.target),  # type: ignore[call-overload]
    "foreach": lambda w: torch._foreach_add_([w.target], [w.value]),  # type: ignore[list-item]
    "data": lambda w: w.target.data.copy_(w.value),
    "data = ": lambda w: setattr(w.target, "data", w.value),
    "a copy": lambda w: w.target.values[-1].assign(w.value),
    "a copy in place": lambda w: w.target.values[-1].copy_(w.value),
    "update": lambda w: _update(w, lambda v, x: v.assign(x), w.value),
    "update in place": lambda w: _update(w, lambda v, x: v.add_(x), w.value),
    "update by a closure": lambda w: _update(w, lambda v: v.assign(w.value)),
    "update by chance": lambda w: _update(w, lambda v: v.assign(torch.rand(2, 2))),
    "update that fails": _update_until,
    "update_non_slot": lambda w: _update_beside(w, lambda: w.target.assign(w.value)),
    "update in replicas": lambda w: w.strategy.run(
        lambda: _update(w, lambda v, x: v.assign(x), w.value)
    ),
    "assign in replicas": lambda w: w.strategy.run(lambda: w.target.assign(w.value)),
    "assign what replicas get": lambda w: w.strategy.run(w.target.assign, (w.value,)),
    "assign_add in replicas": lambda w: w.strategy.run(lambda: w.target.assign_add(w.value)),
    "scatter_add in replicas": lambda w: w.strategy.run(lambda: w.target.scatter_add(_slices(w))),
    "load_state_dict": _loaded,
    "the initial value": _started,
}

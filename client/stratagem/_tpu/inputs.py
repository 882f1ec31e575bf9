"""Datasets that hosts read themselves, and the input of their loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from stratagem._core.distributed_values import components
from stratagem._core.nests import leaves
from stratagem._input.iterator import DistributedIterator
from stratagem._strategies.multi_step import GivesInputs
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError

Recipe = Callable[[Strategy], DistributedIterator]
"""Opens a dataset on a host, given the strategy there."""


class HostsDataset:
    """A dataset of which each host reads its own share."""

    def __init__(self, strategy: Strategy, recipe: Recipe) -> None:
        self._strategy = strategy
        self._recipe = recipe

    def __iter__(self) -> HostsIterator:
        """Return an iterator from its beginning, for a loop of steps."""
        return HostsIterator(self._strategy, self._recipe)


class HostsIterator:
    """Stands, in the program, for the iterators of all hosts.

    It was started again as often as `passes` says.
    """

    def __init__(self, strategy: Strategy, recipe: Recipe) -> None:
        self.strategy = strategy
        self.recipe = recipe
        self.passes = 0

    def initialize(self) -> list[Any]:
        """Start again from the beginning; return the operations to run in a graph: none."""
        self.passes += 1
        return []

    @property
    def initializer(self) -> list[Any]:
        """What `initialize` returns, after calling it."""
        return self.initialize()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> NoReturn:
        """Raise InvalidArgumentError: the data are on the hosts."""
        raise InvalidArgumentError(
            "Hosts read their data themselves, so there is no input to be had here; pass the "
            "iterator to experimental_run_steps_on_iterator, or run_steps_on_dataset"
        )

    def get_next(self) -> NoReturn:
        """Raise the error of `next`."""
        next(self)


class HostInput:
    """A host's own iterator, which is opened when a step first asks for input."""

    def __init__(self, strategy: Strategy, recipe: Recipe) -> None:
        self._strategy = strategy
        self._recipe = recipe
        self._iterator: DistributedIterator | None = None

    def restart(self) -> None:
        """Begin again with the first input."""
        self._iterator = None

    def get_next(self) -> Any:
        """Return the input of the next step, for the cores of this host."""
        if self._iterator is None:
            self._iterator = self._recipe(self._strategy)
        return self._iterator.get_next()


class StaticShapes:
    """Checks that all inputs of an iterator have the same shapes. Spec: TPU-9."""

    def __init__(self, iterator: GivesInputs) -> None:
        self._iterator = iterator
        self._shapes: list[torch.Size] | None = None

    def get_next(self) -> Any:
        """Return the input of the next step.

        Raises InvalidArgumentError if a tensor has another shape than that of another core, or of
        the step before.
        """
        inputs = self._iterator.get_next()
        for core in zip(*map(_parts, leaves(inputs)), strict=True):
            shapes = [x.shape for x in core if isinstance(x, torch.Tensor)]
            self._require(shapes)
        return inputs

    def _require(self, shapes: list[torch.Size]) -> None:
        expected = shapes if self._shapes is None else self._shapes
        for shape, usual in zip(shapes, expected, strict=True):
            if shape != usual:
                raise InvalidArgumentError(
                    "A loop on accelerators needs inputs with fully defined shapes, but one has "
                    f"{tuple(shape)} where others have {tuple(usual)}; leave an incomplete last "
                    "batch out, for instance by DataLoader(..., drop_last=True)"
                )
        self._shapes = expected


def _parts(leaf: Any) -> tuple[Any, ...]:
    parts = components(leaf)
    return (leaf,) if parts is None else parts

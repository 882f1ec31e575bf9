"""The random generators that loaders shuffle by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from stratagem_proto.errors import InvalidArgumentError

_MISSING = object()


def _drawing(dataset: Any) -> list[Any]:
    """Return the loader and its samplers, as far as `dataset` has them."""
    batch_sampler = getattr(dataset, "batch_sampler", None)
    samplers = (getattr(owner, "sampler", None) for owner in (dataset, batch_sampler))
    return [dataset, *samplers]


class Order:
    """The generators by which loaders shuffle, and their states at the beginning.

    Args:
        datasets: The loaders; others have none.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        owners = [owner for dataset in datasets for owner in _drawing(dataset)]
        own = [getattr(owner, "generator", None) for owner in owners]
        self._generators = [each for each in own if isinstance(each, torch.Generator)]
        self._states: list[torch.Tensor] = []

    def note(self) -> None:
        """Take note of how the generators stand."""
        self._states = [each.get_state() for each in self._generators]

    def repeat(self) -> None:
        """Let the generators stand as they were noted, if they were."""
        for generator, state in zip(self._generators, self._states, strict=False):
            generator.set_state(state)


@contextmanager
def undisturbed(datasets: Sequence[Any]) -> Iterator[None]:
    """Restore torch's CPU generator, and those of loaders, after the body."""
    order = Order(datasets)
    with torch.random.fork_rng(devices=[]):
        order.note()
        try:
            yield
        finally:
            order.repeat()


def shuffle_alike(dataset: Any, seed: Callable[[], int] | None) -> None:
    """Give samplers that draw from torch's generator one of their own, by `seed`.

    The generators of several processes may differ, and then each would read other rows at the same
    place of the same batch.

    Raises:
        InvalidArgumentError: There is such a sampler, but no seed.
    """
    for sampler in _drawing(dataset)[1:]:
        if getattr(sampler, "generator", _MISSING) is not None:
            continue
        if seed is None:
            raise InvalidArgumentError(
                f"The loader shuffles by {type(sampler).__name__} without a generator, "
                "so each worker would read another order; give it one of the same seed "
                "on every worker: DataLoader(..., "
                "generator=torch.Generator().manual_seed(seed))"
            )
        sampler.generator = torch.Generator().manual_seed(seed())

"""Inputs that have the same shapes in every step."""

from __future__ import annotations

from typing import Any

import torch

from stratagem._core.tensors.nests import leaves
from stratagem._core.values.placement import components
from stratagem._strategies.multi_step import GivesInputs
from stratagem_proto.errors import InvalidArgumentError


class StaticShapes:
    """An iterator that lets inputs of one shape pass. Spec: TPU-9.

    Args:
        iterator: Gives the inputs.
    """

    def __init__(self, iterator: GivesInputs) -> None:
        self._iterator = iterator
        self._shapes: list[torch.Size] | None = None

    def get_next(self) -> Any:
        """Return the input of the next step.

        Raises:
            InvalidArgumentError: A tensor has another shape than that of another core,
                or of the step before.
            OutOfRangeError: The data have ended.
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
                    "A loop on accelerators needs inputs with fully defined shapes, "
                    f"but one has {tuple(shape)} where others have {tuple(usual)}; "
                    "leave an incomplete last batch out, for instance by "
                    "DataLoader(..., drop_last=True)"
                )
        self._shapes = expected


def _parts(leaf: Any) -> tuple[Any, ...]:
    parts = components(leaf)
    return (leaf,) if parts is None else parts

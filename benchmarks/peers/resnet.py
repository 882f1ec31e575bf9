"""The shapes of ResNet-50's parameters (He et al., 2016), without the last bias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_EXPANSION = 4
_CLASSES = 1000


def shapes() -> Sequence[Shape]:
    """160 shapes of 25.6 million elements in all."""
    return [*_convolution(64, 3, 7), *_stages(), (_CLASSES, 512 * _EXPANSION)]


def _stages() -> Iterator[Shape]:
    inputs = 64
    for width, blocks in _STAGES:
        for block in range(blocks):
            yield from _convolution(width, inputs, 1)
            yield from _convolution(width, width, 3)
            yield from _convolution(width * _EXPANSION, width, 1)
            if block == 0:
                yield from _convolution(width * _EXPANSION, inputs, 1)
            inputs = width * _EXPANSION


def _convolution(outputs: int, inputs: int, kernel: int) -> Sequence[Shape]:
    """Its weight, and what normalises behind it."""
    return (outputs, inputs, kernel, kernel), (outputs,), (outputs,)

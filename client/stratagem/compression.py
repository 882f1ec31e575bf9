"""How gradients are made smaller on their way to parameter servers.

Servers decode what comes before they do anything with it, so optimizers and their state have the
precision of the variables whatever the gradients travel as.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.wire.encodings import Encoded, narrow, pack, quantize, select

__all__ = ["BFloat16", "Compression", "Float16", "Int4", "Int8", "TopK"]


class Compression(ABC):
    """A way to compress; give it to `DistributedOptimizer(compression=...)`.

    Attributes:
        error_feedback: Whether the worker keeps the residual of a gradient and adds it to the next
            one, which takes the memory of one more gradient.
        compresses_rows: Whether row-sparse gradients are compressed, too. Their residuals are not
            kept: the next gradient has other rows.
    """

    error_feedback = False
    compresses_rows = True

    @abstractmethod
    def encode(self, value: torch.Tensor) -> Encoded:
        """Return a finite floating-point tensor as it is to travel."""


@dataclass(frozen=True)
class BFloat16(Compression):
    """Rounds to bfloat16: half of float32's bytes and all of its range. "bf16"."""

    def encode(self, value: torch.Tensor) -> Encoded:
        return narrow(value, torch.bfloat16)


@dataclass(frozen=True)
class Float16(Compression):
    """Rounds to float16: half of float32's bytes, more exact than bfloat16. "fp16".

    Elements beyond 65504 become that, and those below 6e-8 become 0.
    """

    def encode(self, value: torch.Tensor) -> Encoded:
        return narrow(value, torch.float16)


@dataclass(frozen=True)
class Int8(Compression):
    """Rounds to 255 levels between plus and minus the largest element. "int8".

    What rounding loses is added to the next gradient (error feedback).

    Attributes:
        per_row: Whether each entry of the first dimension has levels of its own, at the price of
            one number more for each; else the whole tensor shares them.

    References: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014.
    """

    per_row: bool = True

    error_feedback = True

    def encode(self, value: torch.Tensor) -> Encoded:
        return quantize(value, self.per_row)


@dataclass(frozen=True)
class Int4(Int8):
    """Rounds to 15 levels, so that two elements take a byte. "int4".

    It is for differences of `stratagem.LocalSteps` and other large gradients on slow networks: what
    rounding loses is added to the next one, which is so much more than with `Int8`.
    """

    def encode(self, value: torch.Tensor) -> Encoded:
        return pack(value, self.per_row)


@dataclass(frozen=True)
class TopK(Compression):
    """Sends only the elements of the largest magnitude, with their places.

    All others wait on the worker and are added to the next gradient (error feedback). Row-sparse
    gradients are sent whole: what they would leave behind had to wait for the same rows to come
    again, in memory as large as the table.

    Attributes:
        fraction: Which part of each gradient's elements to send, above 0 and at most 1; at least
            one element is sent.

    Raises:
        InvalidArgumentError: `fraction` is out of its range.

    References: Stich, Cordonnier, Jaggi, Sparsified SGD with memory, NeurIPS 2018.
    """

    fraction: float

    error_feedback = True
    compresses_rows = False

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InvalidArgumentError(
                f"TopK sends a fraction of the elements, which is above 0 and at most "
                f"1, not {self.fraction!r}; TopK(0.01) sends 1 %"
            )

    def encode(self, value: torch.Tensor) -> Encoded:
        count = min(value.numel(), max(1, round(self.fraction * value.numel())))
        return select(value, count)


_BY_NAME = {"bf16": BFloat16(), "fp16": Float16(), "int8": Int8(), "int4": Int4()}


def compression_from(given: object) -> Compression | None:
    """Return the compression that a user means.

    Raises:
        InvalidArgumentError: There is none of that name.
        InvalidTypeError: It is neither a name nor a `Compression`.
    """
    if given is None or isinstance(given, Compression):
        return given
    if not isinstance(given, str):
        raise InvalidTypeError(
            f"compression is a name or one of stratagem.compression, not {given!r}; "
            f"names are {', '.join(_BY_NAME)}"
        )
    if given not in _BY_NAME:
        raise InvalidArgumentError(
            f"there is no compression {given!r}; say {', '.join(_BY_NAME)} or, for "
            "instance, stratagem.compression.TopK(0.01)"
        )
    return _BY_NAME[given]

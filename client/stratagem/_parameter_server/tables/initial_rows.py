"""What the rows of a table are before they are first written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import init

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import (
    Initializer,
    NormalShape,
    TruncatedNormalShape,
    UniformRange,
)

_SEED_MASK = 2**64 - 1


@dataclass(frozen=True)
class Constant:
    """Elements that are all the same."""

    value: float

    def kind(self) -> dict[str, Any]:
        """Return the field of an `Initializer` that says so."""
        return {"constant": self.value}

    def fill(self, tensor: torch.Tensor, generator: torch.Generator | None) -> None:
        """Give the elements of a tensor such values."""
        tensor.fill_(self.value)


@dataclass(frozen=True)
class Uniform:
    """Evenly distributed elements."""

    low: float
    high: float

    def kind(self) -> dict[str, Any]:
        """Return the field of an `Initializer` that says so."""
        return {"uniform": UniformRange(low=self.low, high=self.high)}

    def fill(self, tensor: torch.Tensor, generator: torch.Generator | None) -> None:
        """Give the elements of a tensor such values."""
        tensor.uniform_(self.low, self.high, generator=generator)


@dataclass(frozen=True)
class Normal:
    """Normally distributed elements."""

    mean: float
    std: float

    def kind(self) -> dict[str, Any]:
        """Return the field of an `Initializer` that says so."""
        return {"normal": NormalShape(mean=self.mean, std=self.std)}

    def fill(self, tensor: torch.Tensor, generator: torch.Generator | None) -> None:
        """Give the elements of a tensor such values."""
        tensor.normal_(self.mean, self.std, generator=generator)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normally distributed elements, drawn again while they are out of bounds."""

    mean: float
    std: float
    low: float
    high: float

    def kind(self) -> dict[str, Any]:
        """Return the field of an `Initializer` that says so."""
        shape = TruncatedNormalShape(mean=self.mean, std=self.std, low=self.low, high=self.high)
        return {"truncated_normal": shape}

    def fill(self, tensor: torch.Tensor, generator: torch.Generator | None) -> None:
        """Give the elements of a tensor such values."""
        init.trunc_normal_(tensor, self.mean, self.std, self.low, self.high, generator)


Distribution = Constant | Uniform | Normal | TruncatedNormal


@dataclass(frozen=True)
class InitialRows:
    """The rows of a table before they are written.

    Attributes:
        distribution: What the elements are; None where that was not seen.
        zero_row: A row that is zero all the same; None for none.
        seed: That of the generator that was given; None for torch's own.
        obstacle: An operation on the values that servers cannot repeat; "" for none.
    """

    distribution: Distribution | None = None
    zero_row: int | None = None
    seed: int | None = None
    obstacle: str = ""

    def without(self, operation: str) -> InitialRows:
        """Return these rows after an operation that servers cannot repeat."""
        return replace(self, obstacle=self.obstacle or operation)

    def initializer(self) -> Initializer:
        """Return what tells servers to make them, with torch's seed or the generator's."""
        seed = torch.initial_seed() if self.seed is None else self.seed
        assert self.distribution is not None
        kind = self.distribution.kind()
        return Initializer(seed=seed & _SEED_MASK, zero_row=self.zero_row, **kind)

    def made_here(self, like: torch.Tensor) -> torch.Tensor:
        """Return such values, made in this process, with the shape and dtype of `like`."""
        # A scope that is open in the __init__ of a module would defer this memory, too.
        with torch._C.DisableTorchFunction():
            made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
            seed = None if self.seed is None else self.seed & _SEED_MASK
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            if self.distribution is not None:
                self.distribution.fill(made, generator)
            if self.zero_row is not None:
                made[self.zero_row] = 0
        return made

    def require_possible(self, what: str) -> None:
        """Refuse initial values that servers cannot repeat."""
        if self.obstacle or self.distribution is None:
            by = f", by {self.obstacle}" if self.obstacle else ""
            raise InvalidArgumentError(
                f"{what} has no memory here, and parameter servers cannot repeat how it is "
                f"initialised{by}; {REMEDY}"
            )


REMEDY = (
    "initialise it in place by normal_, trunc_normal_, uniform_, constant_, zeros_, ones_, "
    "xavier_* or kaiming_* of torch.nn.init, or give it memory: by a larger meta_above in "
    "scope(), and in place of stratagem.nn.Embedding by torch.nn.Embedding(sparse=True)"
)
"""What to do about an operation that needs the memory of a parameter that has none."""

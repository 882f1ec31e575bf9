"""Compressing one optimizer's gradients, with what they lose kept for later."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from stratagem.compression import Compression
    from stratagem_proto.wire.encodings import Encoded


class Compressed(NamedTuple):
    """A gradient to send.

    Attributes:
        value: As it travels.
        residual: What the receiver lacks of it, and of what was kept for it; None if nothing is
            kept.
    """

    value: torch.Tensor | Encoded
    residual: torch.Tensor | None = None


class Compressor:
    """Compresses gradients, and keeps their residuals until the next ones.

    A residual counts once `keep` is called: when the gradient has arrived. A failed step leaves
    what was kept for the next try. Without a compression, gradients stay as they are.
    """

    def __init__(self, compression: Compression | None) -> None:
        self.compression = compression
        self._residuals: dict[str, torch.Tensor] = {}

    def dense(self, variable: str, value: torch.Tensor) -> Compressed:
        """Compress the gradient of a whole variable.

        One that is not finite, or that would not become smaller, stays as it is.
        """
        compression = self.compression
        if compression is None or not value.is_floating_point():
            return Compressed(value)
        if not compression.error_feedback:
            return Compressed(_smaller(compression, value))
        if not bool(value.isfinite().all()):
            return Compressed(value)
        whole = self._with_residual(variable, value.detach())
        sent = _smaller(compression, whole)
        return Compressed(sent, whole - _arriving(sent))

    def rows(self, values: torch.Tensor) -> torch.Tensor | Encoded:
        """Compress the values of a row-sparse gradient."""
        compression = self.compression
        if compression is None or not compression.compresses_rows:
            return values
        if not values.is_floating_point() or not bool(values.isfinite().all()):
            return values
        return _smaller(compression, values)

    def keep(self, variable: str, residual: torch.Tensor) -> None:
        """Keep what the last gradient of a variable lost."""
        self._residuals[variable] = residual

    def _with_residual(self, variable: str, value: torch.Tensor) -> torch.Tensor:
        residual = self._residuals.get(variable)
        return value if residual is None else value + residual.to(value.device)


def compressor_for(given: Compression | str | None) -> Compressor:
    """Return a compressor of the compression that a user means, by its name or as it is."""
    if given is None:
        return Compressor(None)
    # Late, here and below: programs that compress nothing do without protobuf.
    from stratagem.compression import compression_from

    return Compressor(compression_from(given))


def _smaller(compression: Compression, value: torch.Tensor) -> torch.Tensor | Encoded:
    encoded = compression.encode(value)
    return encoded if encoded.nbytes < value.nbytes else value


def _arriving(sent: torch.Tensor | Encoded) -> torch.Tensor:
    if isinstance(sent, torch.Tensor):
        return sent
    from stratagem_proto.wire.encodings import decode

    return decode(sent)

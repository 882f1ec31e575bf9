"""Optimizers that `torch.optim` does not have, and that parameter servers run."""

from __future__ import annotations

from stratagem_proto.programs.optimizers import RowWiseAdagrad

__all__ = ["RowWiseAdagrad"]

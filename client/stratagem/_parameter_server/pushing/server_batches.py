"""What each server gets of the gradients of a step."""

from __future__ import annotations

from collections import defaultdict

import torch

from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.variables.variable import Variable
from stratagem._gradients.compressor import Compressor
from stratagem._parameter_server.pushing.push import Update
from stratagem._parameter_server.variables.split_variable import (
    SplitVariable,
    rows_or_dense,
)
from stratagem._parameter_server.variables.variable import RemoteVariable, remote_of
from stratagem._ps_client.requests.updates import SentGradient, step
from stratagem_proto.errors import InternalError
from stratagem_proto.v1.update_program_pb2 import BackwardPass


class ServerBatch:
    """What one server gets in a step.

    Args:
        compressor: Makes it smaller.

    Attributes:
        gradients: The gradients of its variables that are yet to be sent.
        backward: The pass of which the server has others; None if it has none.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.gradients: list[SentGradient] = []
        self.backward: BackwardPass | None = None
        self._compressor = compressor
        self._losses: dict[str, torch.Tensor] = {}

    def add(
        self, variable: str, value: torch.Tensor | IndexedSlices, group: int
    ) -> None:
        """Take in a gradient, dense or row-sparse."""
        if isinstance(value, IndexedSlices):
            rows = self._compressor.rows(value.values)
            self.gradients.append(SentGradient(variable, rows, group, value.indices))
        elif self._compressor.compression is None:
            self.gradients.append(SentGradient(variable, value, group))
        else:
            self._compress(variable, value, group)

    def _compress(self, variable: str, value: torch.Tensor, group: int) -> None:
        compressed = self._compressor.dense(variable, value)
        self.gradients.append(SentGradient(variable, compressed.value, group))
        if compressed.loss is not None:
            self._losses[variable] = compressed.loss

    @property
    def variables(self) -> set[str]:
        """Names of the variables that it has gradients of."""
        return {gradient.variable for gradient in self.gradients}

    def update(self, program: bytes) -> Update:
        """Return what the server is sent; `program` as of `updates.step`."""
        request = step(program, self.gradients, backward=self.backward)
        arrived = self.arrived if self._losses else None
        return Update(request, self.variables, arrived)

    def arrived(self) -> None:
        """Take note that the server has the gradients."""
        for variable, loss in self._losses.items():
            self._compressor.keep(variable, loss)

    @property
    def nbytes(self) -> int:
        """How much is yet to be sent."""
        return sum(gradient.value.nbytes for gradient in self.gradients)

    def begin(self, backward: BackwardPass) -> list[SentGradient]:
        """Return what there is, to be sent before the rest."""
        gradients, self.gradients = self.gradients, []
        self.backward = backward
        return gradients


ServerBatches = defaultdict[int, ServerBatch]
"""What the servers get, by index."""


def no_batches(compressor: Compressor) -> ServerBatches:
    """Return loads to which gradients are yet to be added."""
    return defaultdict(lambda: ServerBatch(compressor))


def add_gradient(
    batches: ServerBatches, variable: Variable, value: torch.Tensor, group: int
) -> None:
    """Add the gradient of a variable.

    Args:
        batches: Where to.
        variable: The variable.
        value: Its gradient, dense or `torch.sparse_coo`.
        group: Number of its param group.
    """
    if isinstance(variable, SplitVariable):
        for part, share in zip(variable.parts, variable.gradients(value), strict=True):
            batches[part.place.server].add(part.name, share, group)
        return
    remote = variable if isinstance(variable, RemoteVariable) else _remote(variable)
    batches[remote.place.server].add(remote.name, rows_or_dense(value), group)


def _remote(variable: Variable) -> RemoteVariable:
    remote = remote_of(variable)
    if remote is None:
        raise InternalError(f"variable {variable.name!r} is on no parameter server")
    return remote

"""What each server gets of the gradients of a step, after it or during the backward pass."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from stratagem._core.variables import Variable
from stratagem._core.waiting import uninterrupted
from stratagem._gradients import Compressor
from stratagem._parameter_server.pushing.push import Update
from stratagem._parameter_server.variables.split_variable import SplitVariable, values_of_rows
from stratagem._parameter_server.variables.variable import remote_of
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.updates import SentGradient, step
from stratagem_proto.errors import InternalError
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from stratagem_proto.wire.encodings import Encoded


class ServerBatch:
    """What one server gets in a step.

    Attributes:
        gradients: The gradients of its variables that are yet to be sent.
        backward: The pass of which the server has others; None if it has none.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.gradients: list[SentGradient] = []
        self.backward: BackwardPass | None = None
        self._compressor = compressor
        self._residuals: dict[str, torch.Tensor] = {}

    def add(
        self, variable: str, values: torch.Tensor, group: int, rows: torch.Tensor | None = None
    ) -> None:
        """Take in a gradient, dense or of rows; otherwise as of `SentGradient`."""
        value: torch.Tensor | Encoded = values
        if rows is not None:
            value = self._compressor.rows(values)
        elif self._compressor.compression is not None:
            value, residual = self._compressor.dense(variable, values)
            if residual is not None:
                self._residuals[variable] = residual
        self.gradients.append(SentGradient(variable, value, group, rows))

    @property
    def variables(self) -> set[str]:
        """Names of the variables that it has gradients of."""
        return {gradient.variable for gradient in self.gradients}

    def update(self, program: bytes) -> Update:
        """Return what the server is sent; `program` as of `updates.step`."""
        request = step(program, self.gradients, backward=self.backward)
        arrived = self.arrived if self._residuals else None
        return Update(request, self.variables, arrived)

    def arrived(self) -> None:
        """Take note that the server has the gradients."""
        for variable, residual in self._residuals.items():
            self._compressor.keep(variable, residual)

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
    """Add the gradient of a variable, dense or `torch.sparse_coo`, of a param group by number."""
    if isinstance(variable, SplitVariable):
        for part, (values, rows) in zip(variable.parts, variable.gradients(value), strict=True):
            batches[part.place.server].add(part.name, values, group, rows)
        return
    remote = remote_of(variable)
    if remote is None:
        raise InternalError(f"variable {variable.name!r} is on no parameter server")
    values, rows = values_of_rows(value)
    batches[remote.place.server].add(remote.name, values, group, rows)


# Smaller gradients wait for others that go to the same server.
_BUCKET_BYTES = 1 << 20


class OverlappedPush:
    """What has been sent of one optimizer's gradients before its step.

    The servers only keep it: they apply all of a step or nothing.

    Attributes:
        variables: Names of the variables whose gradient is taken care of.
    """

    def __init__(self, servers: ServerGroup, optimizer: str, compressor: Compressor) -> None:
        self._servers = servers
        self._compressor = compressor
        # Servers take a client's requests one after the other. What is sent from this thread
        # belongs to no scheduled function: who runs one again, sends it again.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="early-push")
        self._backward = BackwardPass(optimizer=optimizer)
        self.discard()

    def add(self, variable: Variable, gradient: torch.Tensor, group: int) -> None:
        """Take in a gradient that is final, and send what there is if it is much."""
        self.variables.add(variable.name)
        add_gradient(self._batches, variable, gradient, group)
        for server, batch in self._batches.items():
            if batch.nbytes >= _BUCKET_BYTES:
                request = updates.keep(self._backward, batch.begin(self._backward))
                send = partial(self._servers.push, {server: request})
                # An interruption may go astray to a thread that is just being started.
                with uninterrupted():
                    self._sent.append(self._sender.submit(send))

    def finish(self) -> ServerBatches:
        """Wait for what was sent, and return what was not."""
        for sent in self._sent:
            sent.result()
        return self._batches

    def discard(self) -> None:
        """Begin anew: what was sent will not be used, or has been."""
        number = self._backward.number + 1
        optimizer = self._backward.optimizer
        self._backward = BackwardPass(optimizer=optimizer, number=number)
        self.variables: set[str] = set()
        self._batches: ServerBatches = no_batches(self._compressor)
        self._sent: list[Future[Any]] = []

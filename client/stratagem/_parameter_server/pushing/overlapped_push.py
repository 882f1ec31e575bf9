"""Sending gradients to servers while their backward pass goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from stratagem._core.interruption import uninterrupted
from stratagem._core.variables.variable import Variable
from stratagem._gradients.compressor import Compressor
from stratagem._parameter_server.pushing.server_batches import (
    ServerBatches,
    add_gradient,
    no_batches,
)
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import updates
from stratagem_proto.v1.update_program_pb2 import BackwardPass

# Smaller gradients wait for others that go to the same server.
_BUCKET_BYTES = 1 << 20


class OverlappedPush:
    """What has been sent of one optimizer's gradients before its step.

    The servers only keep it: they apply all of a step or nothing.

    Args:
        servers: The servers.
        optimizer: Name of the optimizer.
        compressor: Makes gradients smaller.

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
        """Wait for what was sent, and return what was not.

        Raises:
            StratagemError: A server could not be reached, or has refused something.
        """
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

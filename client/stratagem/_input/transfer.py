"""Copying the parts of a round to the devices of the replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from stratagem._core.tensors.nests import leaves, map_leaves
from stratagem._input.rounds import Round


class TransferredRounds(Iterator[Round]):
    """The rounds of `rounds`, each part on the device of its replica.

    Args:
        rounds: Rounds on the host.
        devices: One for each replica; None leaves the part where it is.
        aside: Copy beside the work that GPUs do, to be used while that goes on: this thread then
            waits until the copies are there.
    """

    def __init__(
        self, rounds: Iterator[Round], devices: Sequence[torch.device | None], aside: bool
    ) -> None:
        self._rounds = rounds
        self._devices = devices
        gpus = {device for device in devices if device and device.type == "cuda"}
        self._streams = [torch.cuda.Stream(gpu) for gpu in gpus if aside]

    def __next__(self) -> Round:
        round_ = next(self._rounds)
        with ExitStack() as streams:
            for stream in self._streams:
                streams.enter_context(torch.cuda.stream(stream))
            pairs = zip(round_.parts, self._devices, strict=True)
            parts = [_transferred(part, device) for part, device in pairs]
        for stream in self._streams:
            stream.synchronize()
        return replace(round_, parts=parts)


def _transferred(part: Any, device: torch.device | None) -> Any:
    return part if device is None else map_leaves(lambda x: _copied(x, device), part)


def _copied(leaf: Any, device: torch.device) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if device.type != "cuda" or leaf.is_cuda or leaf.layout is not torch.strided:
        return leaf.to(device)
    # Only from pinned memory can the GPU copy while the host goes on.
    return leaf.pin_memory().to(device, non_blocking=True)


def hand_over(round_: Round) -> None:
    """Let the work that this thread queues on GPUs use the tensors of a round.

    Without this the memory of a tensor that was copied aside could be given to the next one while
    queued work still reads it.
    """
    for leaf in leaves(list(round_.parts)):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            for part in _in_memory(leaf):
                part.record_stream(torch.cuda.current_stream(leaf.device))


def _in_memory(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the tensors that hold the values of `tensor`."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout is torch.jagged:
        # Declared by torch's private class of such tensors only.
        return tensor.values(), tensor.offsets()  # type: ignore[attr-defined]
    return (tensor,)

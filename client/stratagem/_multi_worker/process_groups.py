"""The process groups of torch that carry tensors between workers.

gloo carries tensors in the memory of hosts, and what workers tell each other; NCCL carries tensors
on GPUs. The groups are independent of the program's own `torch.distributed.init_process_group`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import distributed
from torch._C._distributed_c10d import Store

from stratagem._multi_worker.place import WorkerPlace
from stratagem_proto.errors import UnimplementedError

_TURN = timedelta(seconds=0.5)


class ProcessGroup(Protocol):
    """The methods of torch's process groups that are used."""

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work:
        """Add up tensors in place."""

    def allgather(
        self, found: list[list[torch.Tensor]], own: list[torch.Tensor]
    ) -> distributed.Work:
        """Copy each worker's tensor to its place in `found`."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> distributed.Work:
        """Overwrite a tensor by that of the worker `root`."""


def gloo(store: Store, place: WorkerPlace, timeout: timedelta) -> ProcessGroup:
    """Connect with all workers, for tensors in the memory of hosts.

    Args:
        store: Where the workers find each other, under keys of this group alone.
        place: The place of this process among the workers.
        timeout: Longest time that an operation waits.

    Raises:
        RuntimeError: A worker ended, or did not come in time.
    """
    group: object = distributed.ProcessGroupGloo(store, place.rank, place.size, timeout)
    return cast("ProcessGroup", group)


def nccl(
    store: Store, place: WorkerPlace, timeout: timedelta, device: torch.device
) -> ProcessGroup:
    """Prepare for tensors on GPUs; the first operation connects the workers.

    Raises:
        UnimplementedError: This torch has no NCCL.
    """
    if not distributed.is_nccl_available():
        raise UnimplementedError(
            f"{place.name} has its replicas on {device}, but this torch has no NCCL; "
            "install one that has, or use the CPU",
            task=place.name,
        )
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with torch.cuda.device(device):
        group: object = distributed.ProcessGroupNCCL(store, place.rank, place.size, options)
    return cast("ProcessGroup", group)


def wait(work: distributed.Work, device: torch.device) -> None:
    """Wait for an operation; on a GPU, only until it is queued there.

    Raises:
        RuntimeError: The operation failed.
    """
    # The wait is short and repeated, since the keyboard cannot interrupt it.
    while device.type == "cpu" and not work.is_completed():
        with suppress(RuntimeError):
            work.wait(_TURN)
    work.wait()

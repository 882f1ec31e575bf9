"""What the bits depend on that an update computes, besides the update and the variables."""

from __future__ import annotations

import torch

from stratagem_proto.v1.log_pb2 import Kernels


def present_kernels() -> Kernels:
    """Return the kernels of this process.

    Torch counts threads by thread, so this is called once, in the thread that makes a server.
    """
    return Kernels(
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
    )


def described(kernels: Kernels) -> str:
    """Return kernels as words."""
    return f"torch {kernels.torch}, {kernels.threads} threads and {kernels.capability}"

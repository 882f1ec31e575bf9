"""Modules that would normalise by the batches of all replicas, and cannot."""

from __future__ import annotations

from collections.abc import Sequence

from torch import distributed, nn

from stratagem_proto.errors import UnimplementedError


def refuse_synchronised_norms(roots: Sequence[nn.Module], replicas: int) -> None:
    """Refuse `nn.SyncBatchNorm` where several replicas are in sync.

    It asks torch's default process group for the other replicas. Without one it says nothing, and
    normalises by its own replica's part of the batch. A group that the program has made is left to
    it.

    Args:
        roots: The modules.
        replicas: How many replicas are in sync.

    Raises:
        UnimplementedError: There is one; says where.
    """
    if replicas == 1 or (distributed.is_available() and distributed.is_initialized()):
        return
    for root in roots:
        for path, module in root.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                raise _refusal(f"{type(root).__name__}.{path}" if path else type(root).__name__)


def _refusal(place: str) -> UnimplementedError:
    return UnimplementedError(
        f"{place} is an nn.SyncBatchNorm, which needs a process group of torch.distributed to "
        "normalise by the batches of all replicas, and there is none: each replica would normalise "
        "by its own. Use nn.BatchNorm1d to 3d, which do that too, and of which "
        'ParameterServerStrategy(buffers="mean") averages the running statistics; or nn.GroupNorm '
        "or nn.LayerNorm, which need no other replicas"
    )

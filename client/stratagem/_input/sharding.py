"""Which share of the data a worker reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stratagem._input.options import AutoShardPolicy
from stratagem._options import InputContext
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError


@dataclass(frozen=True)
class InputWorker:
    """A process as a reader of data.

    Attributes:
        context: Its place among all workers; dataset functions are given it.
        devices: Where the elements of each of its replicas go; None leaves them
            where they are.

    Raises:
        InvalidArgumentError: The replicas in sync are not shared evenly between
            the workers. Spec: INP-21.
    """

    context: InputContext
    devices: tuple[torch.device | None, ...]

    def __post_init__(self) -> None:
        local, in_sync = len(self.devices), self.context.num_replicas_in_sync
        workers = self.context.num_input_pipelines
        # Workers that step alone have nobody but themselves in sync.
        if in_sync not in (local, local * workers):
            raise InvalidArgumentError(
                f"{in_sync} replicas in sync cannot be shared evenly between {workers} "
                f"workers of which this one has {local}; give every worker as many"
            )

    def share_of(self, dataset: Any, policy: AutoShardPolicy | int) -> Any:
        """Return the part of `dataset` that this worker reads.

        Args:
            dataset: The whole.
            policy: How to share; a single worker reads everything.

        Raises:
            InvalidArgumentError: `policy` is none.
            UnimplementedError: Several workers are to share one dataset.
        """
        if policy not in tuple(AutoShardPolicy):
            raise InvalidArgumentError(
                f"auto_shard_policy must be one of AutoShardPolicy, not {policy!r}"
            )
        workers = self.context.num_input_pipelines
        if workers == 1 or policy == AutoShardPolicy.OFF:
            return dataset
        raise UnimplementedError(
            f"A dataset cannot be shared between {workers} workers yet; use "
            "distribute_datasets_from_function and read worker input_pipeline_id's "
            "part, or let each worker read everything by AutoShardPolicy.OFF"
        )

"""What the user of a strategy with parameter servers chooses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from stratagem._cluster.device_filters import ClusterDeviceFilters
from stratagem._parameter_server.variables.partitioning import VariablePartitioner
from stratagem._parameter_server.variables.placement import placement_named
from stratagem.consistency import Consistency
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.cluster_pb2 import ConfigProto

# Where variables are is decided by the task that creates them, and each task has the token from
# where it runs.
_OF_ONE_TASK = {"variable_partitioner", "placement", "token"}


@dataclass(frozen=True)
class Settings:
    """The arguments of a `ParameterServerStrategy`, but for the cluster.

    Raises:
        InvalidArgumentError: There is no such placement, so many pushes cannot be in flight, or
            buffers are to be something else.
    """

    variable_partitioner: VariablePartitioner | None
    consistency: Consistency
    placement: str
    pull_dtype: torch.dtype | None
    fused_steps: bool | None
    pushes_in_flight: int
    num_replicas_per_worker: int | None
    token: str | None
    device_filters: ClusterDeviceFilters | None
    session_config: ConfigProto | None
    connect_seconds: float
    peer_seconds: float
    buffers: str = "own"

    def __post_init__(self) -> None:
        placement_named(self.placement)
        if self.buffers not in ("own", "mean"):
            raise InvalidArgumentError(f'buffers is "own" or "mean", not {self.buffers!r}')
        if self.pushes_in_flight not in (0, 1):
            raise InvalidArgumentError(f"pushes_in_flight is 0 or 1, not {self.pushes_in_flight!r}")
        if self.pushes_in_flight:
            self._require_asynchronous()

    def _require_asynchronous(self) -> None:
        if not self.consistency._is_free:
            raise InvalidArgumentError(
                "pushes_in_flight=1 has a step compute without the worker's last push, "
                f"which {self.consistency!r} does not allow; leave it out, or choose "
                'consistency="async"'
            )
        if self.fused_steps is False:
            raise InvalidArgumentError(
                "pushes_in_flight=1 takes the values of a step from the answer to a "
                "push; leave fused_steps=False out"
            )

    @property
    def synchronous(self) -> bool:
        """Whether the workers take their steps together."""
        return self.consistency._closes_steps

    def arguments(self) -> dict[str, Any]:
        """Return them by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def of_all_tasks(self) -> dict[str, Any]:
        """Return by name those that all tasks of the cluster share."""
        given = self.arguments().items()
        return {name: value for name, value in given if name not in _OF_ONE_TASK}

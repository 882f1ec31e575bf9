"""What a parameter-server strategy is made of where there is no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem._local.central_storage import (
    CentralStorageExtended,
    HomeHosting,
    default_parameter_device,
)
from stratagem._parameter_server.cluster import OneProcess
from stratagem._parameter_server.variables.variable_placement import VariablePlacement
from stratagem.consistency import Consistency

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class _AloneHosting(HomeHosting):
    """Takes optimizers of any consistency: with one worker all are the same."""

    def name_optimizer(
        self, class_name: str, consistency: Consistency | None = None
    ) -> str:
        return super().name_optimizer(class_name)


class LocalExtended(CentralStorageExtended):
    """One copy of each variable, in this process.

    Args:
        container_strategy: The strategy.
        devices: Full names of the replicas' devices.

    Spec: PS1-1.
    """

    def __init__(self, container_strategy: Strategy, devices: Sequence[str]) -> None:
        home = default_parameter_device(devices)
        super().__init__(container_strategy, devices, home)
        self._hosting = _AloneHosting(self, devices, self._home)
        self._cluster = OneProcess()

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self._home,)

    def variable_placements(self) -> list[VariablePlacement]:
        """Return where each variable lives: in this process."""
        return [
            VariablePlacement(
                variable.name,
                tuple(variable.shape),
                variable.dtype,
                "/job:localhost/task:0",
                variable.shape.numel() * variable.dtype.itemsize,
            )
            for variable in self._hosting.variables()
        ]

    def _close(self) -> None:
        """There are no sessions to end."""

"""What a parameter-server strategy is made of where there is no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from stratagem._core.variables.variable import Variable
from stratagem._local.central_storage import (
    CentralStorageExtended,
    default_parameter_device,
)
from stratagem._parameter_server.variables.variable_placement import VariablePlacement
from stratagem._ps_client.traffic import Traffic
from stratagem.consistency import Consistency, ConsistencyReport

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


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

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self._home,)

    def variable_placements(self) -> list[VariablePlacement]:
        """Return where each variable lives: in this process."""
        owners = [hosted.variable for hosted in self._parameters]
        owners += [one for one in self._names.owners() if isinstance(one, Variable)]
        return [
            VariablePlacement(
                variable.name,
                tuple(variable.shape),
                variable.dtype,
                "/job:localhost/task:0",
                variable.shape.numel() * variable.dtype.itemsize,
            )
            for variable in owners
        ]

    def _name_optimizer(
        self, class_name: str, consistency: Consistency | None = None
    ) -> str:
        # With one worker all consistencies are the same.
        return super()._name_optimizer(class_name)

    def _set_consistency(self, consistency: Consistency, optimizer: str | None) -> None:
        """There are no other workers."""

    def _consistency_report(self) -> dict[str, ConsistencyReport]:
        return {}

    def _barrier(self, name: str, passed: int, timeout: float | None) -> None:
        """This process is the only one."""

    def _snapshot(self) -> AbstractContextManager[None]:
        # Nobody else changes anything.
        return nullcontext()

    def _traffic(self) -> Traffic:
        return Traffic()

    def _flush(self) -> None:
        """Nothing is ever in flight."""

    def _close(self) -> None:
        """There are no sessions to end."""

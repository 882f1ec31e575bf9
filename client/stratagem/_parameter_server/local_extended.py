"""What a parameter-server strategy is made of where there is no cluster."""

from __future__ import annotations

from stratagem._local.central_storage import CentralStorageExtended, HomeHosting
from stratagem._parameter_server.cluster import OneProcess
from stratagem._parameter_server.variables.variable_placement import VariablePlacement
from stratagem.consistency import Consistency


class _AloneHosting(HomeHosting):
    """Takes optimizers of any consistency: with one worker all are the same."""

    def name_optimizer(self, class_name: str, consistency: Consistency | None = None) -> str:
        return super().name_optimizer(class_name)


class LocalExtended(CentralStorageExtended):
    """One copy of each variable, in this process. Spec: PS1-1."""

    _hosting_class = _AloneHosting
    _cluster = OneProcess()

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

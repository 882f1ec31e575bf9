"""What an update function gets in place of a variable while it is traced."""

from __future__ import annotations

from typing import Any

import torch

from stratagem._core.variables.assignable import Write
from stratagem._core.variables.local import LocalVariable
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem._tracing.source import refused
from stratagem_proto.errors import StratagemError, UpdateFunctionError


class TracedVariable(LocalVariable):
    """Records what is done to a variable.

    Args:
        variable: The variable that it stands for.
        tensor: Tensor without contents, for which the recording records.
    """

    def __init__(self, variable: Variable, tensor: torch.Tensor) -> None:
        traits = VariableTraits(
            variable.name, variable.trainable, variable.synchronization, variable.aggregation
        )
        vars(self).update(
            _traits=traits,
            _leaf=tensor,
            _device_name=variable.device_name,
            _strategy=variable.distribute_strategy,
        )

    def _write(self, write: Write, value: Any) -> None:
        try:
            super()._write(write, value)
        except UpdateFunctionError:
            raise
        except StratagemError as error:
            raise refused(
                f"{write.value} fails: {error.message}", "convert the value before"
            ) from error

    def _checked_indices(self, indices: torch.Tensor) -> torch.Tensor:
        # They are not known here; the server checks them.
        return indices

    def __setattr__(self, name: str, value: object) -> None:
        raise refused(
            f"{name!r} of variable {self.name!r} is assigned, which servers do not see",
            "write the variable with assign(), or in place with copy_()",
        )

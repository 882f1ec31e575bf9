"""The variables, tensors and numbers that an update function was found to use.

A function that is traced gets a stand-in of each variable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

import torch

from stratagem._core.assignment import Write
from stratagem._core.variable_creation import VariableTraits
from stratagem._core.variables import LocalVariable, Variable
from stratagem._tracing.numbers import NumberNode, traced
from stratagem._tracing.recording import RecordedValue, Recording, Source
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


class TracedInputs:
    """Makes the stand-ins for inputs, one for each that is distinct.

    Args:
        recording: Where the stand-ins record.
        is_hosted: Whether a variable lives on the server that runs the program.

    Attributes:
        recording: As given.
        values: The inputs in the order in which they were found.
        signature: Describes them by all but their values.
    """

    def __init__(self, recording: Recording, is_hosted: Callable[[Variable], bool]) -> None:
        self.values: list[RecordedValue] = []
        self.signature: list[Hashable] = []
        self.recording = recording
        self._is_hosted = is_hosted
        # Hosted variables by name, for several objects may stand for one; all else by identity.
        self._variables: dict[str | int, tuple[int, TracedVariable]] = {}
        self._tensors: dict[int, int] = {}

    def number(self, number: int | float, label: str) -> Any:
        """Return the stand-in for a number."""
        value = RecordedValue(number, label, writable=False)
        self._add(value, ("number", type(number).__name__))
        return traced(NumberNode(self.recording, value, number, label))

    def variable(self, variable: Variable, label: str) -> TracedVariable:
        """Return the stand-in for a variable."""
        if isinstance(variable, TracedVariable):
            return variable
        hosted = self._is_hosted(variable)
        key = variable.name if hosted else id(variable)
        if key not in self._variables:
            self._variables[key] = self._new_variable(variable, label, hosted)
        order, stand_in = self._variables[key]
        self.signature.append(("input", order))
        return stand_in

    def _new_variable(
        self, variable: Variable, label: str, hosted: bool
    ) -> tuple[int, TracedVariable]:
        order = len(self.values)
        value = RecordedValue(variable, label, writable=hosted)
        # A function may ask for these, for instance leave biases out by name.
        traits = (variable.name, variable.trainable, variable.device_name)
        self._add(value, (variable.dtype, variable.shape, hosted, *traits))
        tensor = self.recording.new_input(value, variable.shape, variable.dtype)
        return order, TracedVariable(variable, tensor)

    def tensor(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Take note of a tensor; what is done to itself will be recorded."""
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = len(self.values)
            value = RecordedValue(tensor, label, writable=False)
            self._add(value, (tensor.dtype, tensor.shape, tensor.layout))
            if tensor.layout is torch.strided and not tensor.is_meta:
                self.recording.adopt(tensor, value)
                self.signature.append(tensor.stride())
        self.signature.append(("input", self._tensors[id(tensor)]))
        return tensor

    def _add(self, value: RecordedValue, description: Hashable) -> None:
        self.values.append(value)
        self.signature.append(description)

    def replacement(self, argument: Any) -> Any:
        """Return what takes the place of an argument of a torch function."""
        if isinstance(argument, Variable):
            self.recording.reproducible &= isinstance(argument, TracedVariable)
            return self.variable(argument, argument.name)
        if isinstance(argument, torch.Tensor):
            return self.recording.without_contents(argument)
        return argument

    @property
    def hosted_variables(self) -> list[RecordedValue]:
        """The variables that can be written."""
        return [value for value in self.values if value.writable]

    @property
    def sources(self) -> list[Source]:
        """What the caller binds, in the order of the values."""
        found = (value.source for value in self.values if value.source is not None)
        return [cast("Source", source) for source in found]

    def number_of(self, value: RecordedValue) -> int:
        """Return the place of a value; add it if only the recording has it."""
        if value not in self.values:
            self.values.append(value)
        return self.values.index(value)

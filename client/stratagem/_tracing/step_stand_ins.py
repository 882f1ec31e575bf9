"""The stand-ins for what a step of an optimizer is given, and what each is to the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stratagem._tracing.numbers import node_of
from stratagem._tracing.recording import RecordedValue
from stratagem._tracing.step_form import GroupForm, KeptState, StepForm
from stratagem._tracing.step_recording import StepRecording
from stratagem_proto.v1.update_program_pb2 import TracedInput

Meanings = Mapping[RecordedValue, TracedInput]


class OwnInput(NamedTuple):
    """A tensor that a server has: the variable, its gradient, or a part of the state."""

    dtype: torch.dtype


class ParameterStandIns:
    """The stand-ins for a parameter, its gradient and its state.

    Attributes:
        form: What is known of its step.
        parameter: The stand-in for the parameter.
        parameter_value: What is recorded for it.
        kept: What is recorded for each tensor of the state before the step.
        meanings: What the values are to the optimizer.
    """

    def __init__(self, form: StepForm, recording: StepRecording) -> None:
        self.form, self._recording = form, recording
        self.meanings: dict[RecordedValue, TracedInput] = {}
        self.kept: dict[str, RecordedValue] = {}
        self.parameter_value = self._input("the parameter", True, TracedInput(variable=True))
        self.parameter = self._tensor(self.parameter_value, form.shape, form.dtype)
        gradient = self._input("its gradient", False, TracedInput(gradient=True))
        stand_in = self._tensor(gradient, form.shape, form.dtype)
        if form.has_scratch:
            stand_in = recording.copy_of(stand_in)
        else:
            recording.gradients.add(gradient)
        self.parameter.grad = stand_in

    def _input(
        self, label: str, writable: bool, meaning: TracedInput, source: Any = None
    ) -> RecordedValue:
        own = OwnInput(self.form.dtype) if source is None else source
        value = RecordedValue(own, label, writable)
        self.meanings[value] = meaning
        return value

    def _tensor(self, value: RecordedValue, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return self._recording.new_input(value, shape, dtype)

    def state(self) -> dict[str, Any]:
        """Return stand-ins for the state."""
        return {key: self._state(key, kept) for key, kept in self.form.state.items()}

    def _state(self, key: str, kept: KeptState) -> Any:
        label, meaning = f"the state {key!r}", TracedInput(state=key)
        if kept.number is not None:
            value = self._input(label, False, meaning, kept.number)
            return self._recording.kept_number(value, kept.number)
        value = self._input(label, True, meaning, OwnInput(kept.dtype))
        self.kept[key] = value
        shape = torch.Size(()) if kept.is_scalar else self.form.shape
        return self._tensor(value, shape, kept.dtype)


class GroupStandIns:
    """The stand-ins for a param group.

    Attributes:
        parameters: Those for its parameters.
        group: The group as the code sees it.
        meanings: What its numbers are to the optimizer.
    """

    def __init__(self, form: GroupForm, recording: StepRecording) -> None:
        self._recording = recording
        self._constants = form.steps[0].constants if form.steps else frozenset[str]()
        self.meanings: dict[RecordedValue, TracedInput] = {}
        self.parameters: Sequence[ParameterStandIns] = [
            ParameterStandIns(step, recording) for step in form.steps
        ]
        made = {key: self._of_group(key, value) for key, value in form.values.items()}
        self.group = {"params": [one.parameter for one in self.parameters], **made}

    def _of_group(self, name: str, value: Any) -> Any:
        if isinstance(value, tuple | list):
            # The code may change a list, which is to change nothing of the user's.
            items = [self._of_group(f"{name}[{i}]", one) for i, one in enumerate(value)]
            return getattr(type(value), "_make", type(value))(items)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or name in self._constants:
            return value
        stand_in = self._recording.hyperparameter(name, value)
        self.meanings[node_of(stand_in).key] = TracedInput(hyperparameter=name)
        return stand_in

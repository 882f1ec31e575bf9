"""Steps of an optimizer, as a graph program for each parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stratagem._tracing.captured import Captured, plain_function
from stratagem._tracing.encoding import encode_graph
from stratagem._tracing.numbers import example_of, is_traced, node_of
from stratagem._tracing.recording import RecordedValue
from stratagem._tracing.source import Location, definition_of, refused
from stratagem._tracing.step_form import GroupForm, KeptState, StepForm
from stratagem._tracing.step_recording import StepGate, StepRecording
from stratagem._tracing.step_stand_ins import GroupStandIns, Meanings, ParameterStandIns
from stratagem_proto.errors import InvalidArgumentError, StratagemError, UpdateFunctionError
from stratagem_proto.programs.graph_program import check_graph
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1 import update_program_pb2 as pb


@dataclass(frozen=True)
class StepTrace:
    """A traced step of one parameter.

    Attributes:
        message: The step, as servers get it.
        state: The state after it.
    """

    message: pb.TracedStep
    state: Mapping[str, KeptState]


_KEEP = "keep tensors and numbers in self.state[parameter]"


def trace_step(captured: Captured, group: Mapping[str, object], form: StepForm) -> StepTrace:
    """Trace a step of an optimizer that has one parameter; see `trace_steps`."""
    ((traced,),) = trace_steps(captured, [GroupForm(group, [form])])
    return traced


def trace_steps(captured: Captured, groups: Sequence[GroupForm]) -> list[list[StepTrace]]:
    """Trace a step of an optimizer that has these groups.

    Args:
        captured: What the code uses besides groups and state.
        groups: The groups, with what is known of the step of each of their parameters.

    Returns:
        What it does to each parameter of each group.

    Raises:
        UpdateFunctionError: A server cannot do what the step does, or it does something to a
            parameter that depends on another one.
        NumbersNeeded: Hyperparameters have to be constants.
        ScratchNeeded: The step writes a gradient.
    """
    recording = StepRecording()
    stand_ins = [GroupStandIns(group, recording) for group in groups]
    before = [_frozen_group(one.group) for one in stand_ins]
    state: defaultdict[Any, Any] = defaultdict(dict)
    for each in (one for group in stand_ins for one in group.parameters):
        if each.form.state:
            state[each.parameter] = each.state()
    copy = captured.copy([one.group for one in stand_ins], state)
    _run(captured, copy, recording)
    captured.require_unchanged(copy)
    location = definition_of(plain_function(captured.kind.step))
    for values, group in zip(before, stand_ins, strict=True):
        _require_same_group(values, group.group, location)
    _require_state_of_parameters(state, stand_ins, location)
    return [
        [_Results(one, group.meanings, recording, location).of(state) for one in group.parameters]
        for group in stand_ins
    ]


def _run(captured: Captured, copy: Any, recording: StepRecording) -> None:
    step = captured.step_of(copy)
    try:
        with torch.no_grad(), recording, StepGate(recording):
            step(copy)
    except StratagemError:
        raise
    except Exception as error:
        if recording.refusal is not None:
            raise recording.refusal from error
        raise refused(
            f"a step of {captured.kind.__name__} fails when it is traced without a closure and "
            f"without values: {type(error).__name__}: {error}",
            "see whether it needs a closure, or write it with extended.update",
            definition_of(step),
        ) from error
    if recording.refusal is not None:
        # The code has gone on as if nothing had happened, and maybe done something else.
        raise recording.refusal


def _require_state_of_parameters(
    state: Mapping[Any, Any], stand_ins: Sequence[GroupStandIns], location: Location
) -> None:
    known = {id(one.parameter) for group in stand_ins for one in group.parameters}
    for owner, held in state.items():
        if id(owner) not in known and held:
            what = "a tensor" if isinstance(owner, torch.Tensor) else repr(owner)
            raise refused(
                f"the step keeps state for {what}, which is no parameter", _KEEP, location
            )


class _Results:
    """What a step has left behind of one parameter."""

    def __init__(
        self,
        stand_ins: ParameterStandIns,
        numbers: Meanings,
        recording: StepRecording,
        location: Location,
    ) -> None:
        self._stand_ins, self._recording, self._location = stand_ins, recording, location
        self._meanings = {**stand_ins.meanings, **numbers}
        self._outputs: list[RecordedValue] = []
        self._results: list[pb.TracedResult] = []

    def of(self, state: Mapping[Any, Any]) -> StepTrace:
        """Return what was done to the parameter, and its state after it.

        Raises:
            UpdateFunctionError: A server cannot do or keep it.
        """
        own = state.get(self._stand_ins.parameter, {})
        if not isinstance(own, dict):
            raise self._refused(f"the state of a parameter is a {type(own).__name__}, no dict")
        kept = {str(key): self._kept(str(key), value) for key, value in own.items()}
        return StepTrace(self._message(), kept)

    def _kept(self, key: str, value: Any) -> KeptState:
        if isinstance(value, torch.Tensor):
            return self._kept_tensor(key, value)
        number = example_of(value)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self._refused(f"the state {key!r} is a {type(value).__name__}")
        if is_traced(value):
            self._give_back(node_of(value).key, key)
        else:
            constant = encode_values({"": number}).values[""]
            self._results.append(pb.TracedResult(constant=constant))
        dtype = torch.float64 if isinstance(number, float) else torch.int64
        return KeptState(dtype, True, number)

    def _kept_tensor(self, key: str, tensor: torch.Tensor) -> KeptState:
        value = self._recording.value_of(tensor)
        shape = self._stand_ins.form.shape
        if tensor.shape != shape and tensor.dim():
            raise self._refused(
                f"the state {key!r} has the shape {list(tensor.shape)} and its parameter "
                f"{list(shape)}; servers keep state of the same shape, and scalars"
            )
        if value is self._stand_ins.kept.get(key):
            self._results.append(pb.TracedResult())
        elif value.shares.source is not None or self._is_kept_already(value):
            raise self._refused(
                f"the state {key!r} shares its memory with the parameter, its gradient or other "
                "state; clone() it"
            )
        else:
            self._give_back(value, key)
        return KeptState(tensor.dtype, tensor.shape != shape)

    def _is_kept_already(self, value: RecordedValue) -> bool:
        return any(value.shares is one.shares for one in self._outputs)

    def _give_back(self, value: RecordedValue, key: str) -> None:
        if value is self._number_before(key):
            self._results.append(pb.TracedResult())
            return
        self._results.append(pb.TracedResult(output=len(self._outputs)))
        self._outputs.append(value)

    def _number_before(self, key: str) -> RecordedValue | None:
        for value, meaning in self._stand_ins.meanings.items():
            if meaning.state == key and meaning.WhichOneof("kind") == "state":
                return value
        return None

    def _refused(self, what: str) -> UpdateFunctionError:
        return refused(what, _KEEP, self._location)

    def _message(self) -> pb.TracedStep:
        stand_ins = self._stand_ins
        parameter = stand_ins.parameter_value
        if parameter not in self._recording.written:
            raise refused(
                "the step never writes the parameter", "change it in place", self._location
            )
        wanted = [parameter, *stand_ins.kept.values()]
        graph, inputs = encode_graph(self._recording.calls, wanted, self._outputs)
        try:
            check_graph(graph)
        except InvalidArgumentError as error:
            raise UpdateFunctionError(error.message, location=error.location) from error
        meanings = [self._meaning(value) for value in inputs]
        return pb.TracedStep(graph=graph, inputs=meanings, results=self._results)

    def _meaning(self, value: RecordedValue) -> pb.TracedInput:
        try:
            return self._meanings[value]
        except KeyError:
            raise refused(
                f"what the step does to a parameter depends on another one, or on the group of "
                f"another one, by {value.label}",
                "servers step each variable by itself: clip by the norm of all gradients with "
                "DistributedOptimizer(clip_norm=...), and leave out what else looks at several",
                self._location,
            ) from None


def _require_same_group(
    before: Mapping[str, Any], after: Mapping[str, Any], location: Location
) -> None:
    for key in sorted(before.keys() | after.keys()):
        if not _is_same(before.get(key), _frozen(after.get(key))):
            raise refused(
                f"a step changes param_groups[...][{key!r}], which all parameters of the group and "
                "all workers would share",
                "keep what changes in self.state[parameter]",
                location,
            )


def _frozen_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _frozen(value) for key, value in group.items()}


def _frozen(value: Any) -> Any:
    """Return a copy of nested lists, as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, tuple | list) else value


def _is_same(one: Any, other: Any) -> bool:
    if is_traced(one) or is_traced(other) or isinstance(one, torch.Tensor):
        return one is other
    if isinstance(one, tuple) and isinstance(other, tuple):
        same: Sequence[bool] = [_is_same(*pair) for pair in zip(one, other, strict=False)]
        return len(one) == len(other) and all(same)
    return type(one) is type(other) and bool(one == other)

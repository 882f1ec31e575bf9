"""One step of an optimizer for one parameter, as a graph program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from stratagem._tracing.captured import Captured, plain_function
from stratagem._tracing.encoding import encode_graph
from stratagem._tracing.numbers import example_of, is_traced, node_of
from stratagem._tracing.recording import RecordedValue
from stratagem._tracing.source import Location, definition_of, refused
from stratagem._tracing.step_recording import StepGate, StepRecording
from stratagem_proto.errors import InvalidArgumentError, StratagemError, UpdateFunctionError
from stratagem_proto.programs.graph_program import check_graph
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1 import update_program_pb2 as pb


class OwnInput(NamedTuple):
    """A tensor that a server has: the variable, its gradient, or a part of the state."""

    dtype: torch.dtype


@dataclass(frozen=True)
class KeptState:
    """A key of the state after a step.

    Attributes:
        dtype: The dtype of the tensor that keeps it.
        is_scalar: Whether it is one value, and not one for each element of the parameter.
        number: An example, if it is a number of Python.
    """

    dtype: torch.dtype
    is_scalar: bool
    number: int | float | None = None

    @property
    def form(self) -> str:
        """Describe it, for comparisons and messages."""
        if self.number is not None:
            return f"a Python {type(self.number).__name__}"
        return f"a {self.dtype} " + ("scalar" if self.is_scalar else "tensor of its shape")


@dataclass(frozen=True)
class StepForm:
    """What is known of a step before it is traced.

    Attributes:
        shape: The shape of the parameter.
        dtype: The dtype of the parameter.
        constants: The hyperparameters that are constants of the program.
        has_scratch: Whether the code gets a copy of the gradient, which it may write.
        state: The state before the step.
    """

    shape: torch.Size
    dtype: torch.dtype
    constants: frozenset[str] = frozenset()
    has_scratch: bool = False
    state: Mapping[str, KeptState] = field(default_factory=dict)

    def with_constants(self, names: frozenset[str]) -> StepForm:
        return replace(self, constants=names)

    def with_scratch(self) -> StepForm:
        return replace(self, has_scratch=True)

    def after(self, step: StepTrace) -> StepForm:
        return replace(self, state=step.state)


@dataclass(frozen=True)
class StepTrace:
    """A traced step.

    Attributes:
        message: The step, as servers get it.
        state: The state after it.
    """

    message: pb.TracedStep
    state: Mapping[str, KeptState]


def trace_step(captured: Captured, group: Mapping[str, object], form: StepForm) -> StepTrace:
    """Trace a step of one parameter.

    Args:
        captured: What the code uses besides the group and the state.
        group: The param group, without parameters.
        form: What else is known.

    Raises:
        UpdateFunctionError: A server cannot do what the step does.
        NumbersNeeded: Hyperparameters have to be constants.
        ScratchNeeded: The step writes the gradient.
    """
    stand_ins = _StandIns(form)
    own_group = stand_ins.group(group)
    before = {key: _frozen(value) for key, value in own_group.items()}
    state: defaultdict[Any, Any] = defaultdict(dict)
    if form.state:
        state[stand_ins.parameter] = stand_ins.state()
    copy = captured.copy([own_group], state)
    _run(captured, copy, stand_ins.recording)
    captured.require_unchanged(copy)
    location = definition_of(plain_function(captured.kind.step))
    _require_same_group(before, own_group, location)
    results = _Results(stand_ins, location)
    kept = results.of(state)
    return StepTrace(results.message(), kept)


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


class _StandIns:
    """The stand-ins for what a step is given, and what each is to the optimizer."""

    def __init__(self, form: StepForm) -> None:
        self.form = form
        self.recording = StepRecording()
        self.meanings: dict[RecordedValue, pb.TracedInput] = {}
        self.kept: dict[str, RecordedValue] = {}
        self.parameter_value = self._input("the parameter", True, pb.TracedInput(variable=True))
        self.parameter = self._tensor(self.parameter_value, form.shape, form.dtype)
        gradient = self._input("its gradient", False, pb.TracedInput(gradient=True))
        stand_in = self._tensor(gradient, form.shape, form.dtype)
        if form.has_scratch:
            stand_in = self.recording.copy_of(stand_in)
        else:
            self.recording.gradient = gradient
        self.parameter.grad = stand_in

    def _input(
        self, label: str, writable: bool, meaning: pb.TracedInput, source: Any = None
    ) -> RecordedValue:
        own = OwnInput(self.form.dtype) if source is None else source
        value = RecordedValue(own, label, writable)
        self.meanings[value] = meaning
        return value

    def _tensor(self, value: RecordedValue, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return self.recording.new_input(value, shape, dtype)

    def group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a group with stand-ins for its numbers."""
        made = {key: self._of_group(key, value) for key, value in group.items()}
        return {"params": [self.parameter], **made}

    def _of_group(self, name: str, value: Any) -> Any:
        if isinstance(value, tuple | list):
            # The code may change a list, which is to change nothing of the user's.
            items = [self._of_group(f"{name}[{i}]", one) for i, one in enumerate(value)]
            return getattr(type(value), "_make", type(value))(items)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or name in self.form.constants:
            return value
        stand_in = self.recording.hyperparameter(name, value)
        self.meanings[node_of(stand_in).key] = pb.TracedInput(hyperparameter=name)
        return stand_in

    def state(self) -> dict[str, Any]:
        """Return stand-ins for the state."""
        return {key: self._state(key, kept) for key, kept in self.form.state.items()}

    def _state(self, key: str, kept: KeptState) -> Any:
        label, meaning = f"the state {key!r}", pb.TracedInput(state=key)
        if kept.number is not None:
            value = self._input(label, False, meaning, kept.number)
            return self.recording.kept_number(value, kept.number)
        value = self._input(label, True, meaning, OwnInput(kept.dtype))
        self.kept[key] = value
        shape = torch.Size(()) if kept.is_scalar else self.form.shape
        return self._tensor(value, shape, kept.dtype)


class _Results:
    """What a step has left behind."""

    def __init__(self, stand_ins: _StandIns, location: Location) -> None:
        self._stand_ins, self._location = stand_ins, location
        self._recording = stand_ins.recording
        self._outputs: list[RecordedValue] = []
        self._results: list[pb.TracedResult] = []

    def of(self, state: Mapping[Any, Any]) -> dict[str, KeptState]:
        """Return the state after the step, and take note of where it comes from.

        Raises:
            UpdateFunctionError: A server cannot keep it.
        """
        parameter = self._stand_ins.parameter
        for owner, held in state.items():
            if owner is not parameter and held:
                what = "a tensor" if isinstance(owner, torch.Tensor) else repr(owner)
                raise self._refused(f"the step keeps state for {what}, which is no parameter")
        own = state.get(parameter, {})
        if not isinstance(own, dict):
            raise self._refused(f"the state of a parameter is a {type(own).__name__}, no dict")
        return {str(key): self._kept(str(key), value) for key, value in own.items()}

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
        return refused(what, "keep tensors and numbers in self.state[parameter]", self._location)

    def message(self) -> pb.TracedStep:
        """Return the program with what its values are.

        Raises:
            UpdateFunctionError: It is too long, or does not change the parameter.
        """
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
        return self._stand_ins.meanings[value]


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

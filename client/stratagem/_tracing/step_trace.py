"""Steps of an optimizer, recorded on stand-ins, as a graph program for each parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch

from stratagem._tracing.lifting import Captured, plain_function
from stratagem._tracing.numbers import NumberNode, example_of, is_traced, node_of, traced
from stratagem._tracing.recording import RecordedCall, RecordedValue, Recording, encode_graph
from stratagem._tracing.source import Location, definition_of, here, refused
from stratagem._tracing.trace import Gate
from stratagem_proto.errors import InvalidArgumentError, StratagemError, UpdateFunctionError
from stratagem_proto.programs.graph_program import check_graph
from stratagem_proto.programs.operations import ITEM
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1 import update_program_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import TracedInput


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


class GroupForm(NamedTuple):
    """A param group of which some parameters are stepped.

    Attributes:
        values: The group, without parameters.
        steps: The step of each of these parameters.
    """

    values: Mapping[str, object]
    steps: Sequence[StepForm]


_EMPTY_LIKE = torch.ops.aten.empty_like.default


class NumbersNeeded(BaseException):
    """The code has to know hyperparameters; they will be constants of another trace.

    It is no `Exception`, so that no handler of the optimizer catches it.

    Attributes:
        names: The hyperparameters.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names


class ScratchNeeded(BaseException):
    """The code writes the gradient; another trace will give it a copy."""


class StepRecording(Recording):
    """Records a step of an optimizer.

    A number in a tensor of one element may be asked for: the server finds it when the program comes
    to it. Numbers that follow from hyperparameters alone may be looked at, which makes these
    constants of the program.

    Attributes:
        gradients: The values of gradients of which the code gets no copy.
        refusal: The first error that the code was given; it may have caught it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradients: set[RecordedValue] = set()
        self.refusal: StratagemError | None = None
        # The hyperparameters that numbers follow from; a number that is missing here depends on
        # more than that.
        self._origins: dict[RecordedValue, frozenset[str]] = {}

    def hyperparameter(self, name: str, number: int | float) -> Any:
        """Return the stand-in for a hyperparameter, and take note of it."""
        value = RecordedValue(number, name, writable=False)
        self._origins[value] = frozenset({name})
        return traced(NumberNode(self, value, number, f"hyperparameter {name!r}"))

    def item(self, tensor: torch.Tensor) -> Any:
        """Return the stand-in for the number in a tensor."""
        result, example = RecordedValue(), 1.0 if tensor.is_floating_point() else 1
        if tensor.numel() != 1:
            raise refused(".item() is called on several elements", "reduce them to one before")
        value = self.value_of(tensor)
        self.calls.append(RecordedCall(ITEM, [value], {}, [result], None, here()))
        return traced(NumberNode(self, result, example, "the number in a tensor"))

    def arithmetic(self, operation: str, operands: tuple[Any, ...]) -> RecordedValue:
        result = super().arithmetic(operation, operands)
        origins = [self._origins.get(node_of(one).key) for one in operands if is_traced(one)]
        known = [one for one in origins if one is not None]
        if len(known) == len(origins):
            self._origins[result] = frozenset().union(*known)
        return result

    def fix(self, key: Any) -> None:
        self.reveal(
            [key],
            refused(
                "a size, a dimension or a count of repetitions depends on the state",
                "use one that is the same in each step",
            ),
        )

    def reveal(self, keys: Sequence[Any], refusal: StratagemError) -> NoReturn:
        names = [self._origins.get(key) for key in keys]
        known = [each for each in names if each is not None]
        if len(known) == len(names):
            raise NumbersNeeded(frozenset().union(*known))
        self.refusal = self.refusal or refusal
        raise refusal

    def _same(self, tensor: torch.Tensor) -> torch.Tensor:
        # What torch.tensor() makes comes by here, new and real.
        self._require_stand_in(tensor, writable=True)
        return super()._same(tensor)

    def _lookup(self, tensor: torch.Tensor) -> tuple[torch.Tensor, RecordedValue]:
        self._require_stand_in(tensor, writable=False)
        return super()._lookup(tensor)

    def _require_stand_in(self, tensor: torch.Tensor, writable: bool) -> None:
        """Make a real tensor of one element a constant of the program."""
        if id(tensor) in self._known or tensor.is_meta:
            return
        if tensor.numel() != 1 or tensor.layout is not torch.strided:
            raise refused(
                f"the step uses a tensor of shape {list(tensor.shape)} that is neither the "
                "parameter nor its gradient nor its state",
                "keep it in self.state[parameter]",
            )
        with self._paused():
            number = tensor.item()
        value = RecordedValue(writable=writable)
        arguments = [list(tensor.shape), number]
        call = RecordedCall(
            "aten.full.default", arguments, {"dtype": tensor.dtype}, [value], None, here()
        )
        self.calls.append(call)
        meta = self.new_input(value, tensor.shape, tensor.dtype)
        self._known[id(tensor)] = (tensor, meta, value)

    def _require_writable(self, target: RecordedValue | None) -> None:
        if target is not None and target.shares in self.gradients:
            raise ScratchNeeded
        super()._require_writable(target)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if str(func).startswith("profiler."):
            # torch notes the steps of its own classes for profilers, in the bases of subclasses.
            with self._paused():
                return func(*args, **(kwargs or {}))
        if func is _EMPTY_LIKE:
            # The code may not rely on what is in there, so that it may as well be zero.
            func = torch.ops.aten.zeros_like.default
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except StratagemError as error:
            self.refusal = self.refusal or error
            raise


class StepGate(Gate):
    """Lets code do to tensors what a step may."""

    def __init__(self, recording: StepRecording) -> None:
        super().__init__(self._stand_in)
        self._recording = recording

    def _stand_in(self, argument: Any) -> Any:
        is_tensor = isinstance(argument, torch.Tensor)
        return self._recording.without_contents(argument) if is_tensor else argument

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.item:
            return self._recording.item(args[0])
        attribute = getattr(func, "__self__", None)
        if attribute is torch.Tensor.data and getattr(func, "__name__", "") == "__get__":
            # The same memory; without gradients there is no other difference.
            return args[0]
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except StratagemError as error:
            self._recording.refusal = self._recording.refusal or error
            raise


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
            with recording:
                stand_in = stand_in.clone()
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
            return traced(NumberNode(self._recording, value, kept.number, label))
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
    before = [{key: _frozen(one.group[key]) for key in one.group} for one in stand_ins]
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
        [
            _Results(one, group.meanings, recording, location).trace(state)
            for one in group.parameters
        ]
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

    def trace(self, state: Mapping[Any, Any]) -> StepTrace:
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
        elif value.shares.source is not None or any(
            value.shares is one.shares for one in self._outputs
        ):
            raise self._refused(
                f"the state {key!r} shares its memory with the parameter, its gradient or other "
                "state; clone() it"
            )
        else:
            self._give_back(value, key)
        return KeptState(tensor.dtype, tensor.shape != shape)

    def _give_back(self, value: RecordedValue, key: str) -> None:
        meaning = self._stand_ins.meanings.get(value)
        if meaning is not None and meaning.WhichOneof("kind") == "state" and meaning.state == key:
            # It is what it was before the step.
            self._results.append(pb.TracedResult())
            return
        self._results.append(pb.TracedResult(output=len(self._outputs)))
        self._outputs.append(value)

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

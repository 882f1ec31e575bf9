"""The recording of what an optimizer does to one variable in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from stratagem._tracing.numbers import NumberNode, is_traced, node_of, traced
from stratagem._tracing.recording import RecordedCall, RecordedValue, Recording
from stratagem._tracing.source import here, refused
from stratagem._tracing.trace import Gate
from stratagem_proto.errors import StratagemError
from stratagem_proto.programs.operations import ITEM

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

    def kept_number(self, value: RecordedValue, number: int | float) -> Any:
        """Return the stand-in for a number of the state."""
        return traced(NumberNode(self, value, number, value.label))

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of an input, which may be written."""
        with self:
            return tensor.clone()

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

"""Optimizers of users, whose steps of a variable are graph programs.

They take the place of the optimizers of `torch.optim` that a step makes: they get tensors of the
store as parameters and state, and leave the state that they made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import TypedNumber
from stratagem_proto.programs.update_programs import decode_values
from stratagem_proto.v1.update_program_pb2 import (
    HyperparameterGroup,
    OptimizerProgram,
    TracedInput,
    TracedResult,
    TracedRule,
    TracedState,
    TracedStep,
)
from stratagem_proto.wire.tensors import decode_dtype
from stratagem_psserver.limits import require_memory
from stratagem_psserver.optimization.torch_rules import (
    GroupSettings,
    StateLayout,
    StateTensor,
    StepNeeds,
    settings_of,
)
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import Binding, CompiledGraph, compile_graph

# Larger rules are compiled for each step; sensible ones take some KiB.
_MOST_CACHED_BYTES = 64 << 10

Numbers = Mapping[str, Any]
"""The hyperparameters of a param group."""


class KeptState(StateTensor):
    """A tensor of the state, which steps get as it is."""

    def bound(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@dataclass(frozen=True)
class CompiledStep:
    """A step of one variable.

    Attributes:
        graph: The program.
        inputs: What is bound to its inputs.
        results: The state after it, in the order of the layout.
        layout: The state that the rule keeps.
    """

    graph: CompiledGraph
    inputs: Sequence[TracedInput]
    results: Sequence[TracedResult]
    layout: StateLayout

    def run(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        numbers: Numbers,
    ) -> dict[str, torch.Tensor]:
        """Step a parameter and its state in place, and return the state.

        Raises:
            InvalidArgumentError: The program does not fit the tensors, or fails.
            ResourceExhaustedError: There is not enough memory.
        """
        own = _Own(parameter, gradient, state, numbers)
        prepared = prepare(self.graph, list(map(own.value, self.graph.inputs, self.inputs)))
        require_memory([prepared.nbytes])
        made = prepared.values()
        after = {}
        for result, (key, kept) in zip(self.results, self.layout.items(), strict=True):
            # Not by way of the default dtype, which keeps fewer digits of numbers.
            after[key] = torch.as_tensor(_after(result, key, made, state), dtype=kept.dtype)
            _require_shape(key, after[key], kept.shape(parameter))
        return after


@dataclass(frozen=True)
class _Own:
    """What the inputs of a step are bound to."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    state: Mapping[str, torch.Tensor]
    numbers: Numbers

    def value(self, source: Any, one: TracedInput) -> Binding:
        match one.WhichOneof("kind"):
            case "variable":
                return self.parameter
            case "gradient":
                return self.gradient
            case "state":
                value = self.state[one.state]
                return value if source.kind != source.KIND_NUMBER else value.item()
            case _:
                return self._number(one.hyperparameter)

    def _number(self, name: str) -> Binding:
        number = self.numbers.get(name)
        if not isinstance(number, int | float):
            raise InvalidArgumentError(
                f"the hyperparameter {name!r} of a traced rule is {number!r}; send a number"
            )
        return number


def _after(
    result: TracedResult, key: str, made: Sequence[Any], state: Mapping[str, torch.Tensor]
) -> Any:
    match result.WhichOneof("kind"):
        case "output":
            return made[result.output]
        case "constant":
            return _constant(result)
    return state[key]


def _constant(result: TracedResult) -> Any:
    constant = decode_values(HyperparameterGroup(values={"": result.constant}))[""]
    if isinstance(constant, TypedNumber):
        raise InvalidArgumentError("a constant of a traced rule is no number of Python; send one")
    return constant


def _require_shape(key: str, value: torch.Tensor, shape: torch.Size) -> None:
    if value.shape != shape:
        raise InvalidArgumentError(
            f"a traced rule makes the state {key!r} of shape {list(value.shape)}, and "
            f"{list(shape)} is kept; send the rule as the client traces it"
        )


@dataclass(frozen=True)
class CompiledRule:
    """A traced rule that was checked.

    Attributes:
        layout: The state that it keeps.
        first: The step of a variable without state.
        later: Every other step.
        message: The rule as it was sent.
    """

    layout: StateLayout
    first: CompiledStep
    later: CompiledStep
    message: TracedRule


class TracedSettings:
    """The hyperparameters of a param group, and the rule that it is stepped by.

    Args:
        rule: The rule.
        values: The hyperparameters by name.

    Attributes:
        rule: As given.
    """

    def __init__(self, rule: CompiledRule, values: Numbers) -> None:
        self.rule, self.values = rule, values

    def needs(self, dtype: torch.dtype, sparse: bool) -> StepNeeds:
        """Return what a step of a parameter of that dtype needs.

        Raises:
            InvalidArgumentError: Its gradient is row-sparse.
        """
        if sparse:
            raise InvalidArgumentError(
                "a gradient of rows cannot be applied by a traced optimizer, which may change all "
                "rows; use one of torch.optim for tables and for nn.Embedding(sparse=True)"
            )
        return StepNeeds(self.rule.layout, takes_sparse=False)

    def is_safe(self, dtype: torch.dtype) -> bool:
        """Return False: nothing is known about when its steps fail."""
        return False

    @property
    def prototype(self) -> TracedSettings:
        """Makes the optimizers of steps."""
        return self

    def optimizer(
        self, parameters: list[torch.Tensor], fresh: list[torch.Tensor]
    ) -> TracedOptimizer:
        """Return an optimizer of some parameters; the caller sets the state of those with any."""
        return TracedOptimizer(self.rule, self.values, parameters)


class TracedOptimizer:
    """Steps parameters by a traced rule.

    Attributes:
        state: The state of each parameter.
    """

    def __init__(
        self, rule: CompiledRule, values: Numbers, parameters: Sequence[torch.Tensor]
    ) -> None:
        self.state: dict[torch.Tensor, dict[str, Any]] = {}
        self._rule, self._values, self._parameters = rule, values, parameters

    def step(self) -> None:
        """Take a step of all parameters."""
        for parameter in self._parameters:
            state = self.state.get(parameter, {})
            step = self._rule.later if state else self._rule.first
            assert parameter.grad is not None
            self.state[parameter] = step.run(parameter, parameter.grad, state, self._values)


def traced_settings(rule: TracedRule, group: HyperparameterGroup) -> TracedSettings:
    """Return the settings of a group that is stepped by a traced rule.

    Raises:
        InvalidArgumentError: The rule is not valid.
        ResourceExhaustedError: It is too large.
    """
    encoded = rule.SerializeToString(deterministic=True)
    is_small = len(encoded) <= _MOST_CACHED_BYTES
    compiled = (_known_rules if is_small else _compiled)(encoded)
    return TracedSettings(compiled, decode_values(group))


def _compiled(encoded: bytes) -> CompiledRule:
    rule = TracedRule.FromString(encoded)
    layout = {state.key: _kept(state) for state in rule.state}
    if len(layout) < len(rule.state):
        raise InvalidArgumentError("a traced rule names a key of its state twice")
    first = _compiled_step(rule.first, rule, layout, set())
    later = _compiled_step(rule.later, rule, layout, set(layout)) if layout else first
    return CompiledRule(layout, first, later, rule)


_known_rules = lru_cache(maxsize=256)(_compiled)


def _kept(state: TracedState) -> KeptState:
    return KeptState(decode_dtype(state.dtype), state.is_scalar or state.is_number)


def _compiled_step(
    step: TracedStep, rule: TracedRule, layout: StateLayout, readable: set[str]
) -> CompiledStep:
    graph = compile_graph(step.graph)
    if len(step.inputs) != len(graph.inputs) or len(step.results) != len(layout):
        raise InvalidArgumentError(
            "a traced rule does not say what each input of its graph and each key of its state is"
        )
    for source, one in zip(graph.inputs, step.inputs, strict=True):
        kind = one.WhichOneof("kind")
        is_written = source.kind == source.KIND_WRITE
        if kind is None or (is_written and kind not in ("variable", "state")):
            raise InvalidArgumentError(f"a traced rule binds {source.label!r} to {kind}")
        if kind == "state" and one.state not in readable:
            raise InvalidArgumentError(
                f"a traced rule reads the state {one.state!r} in a step that has none"
            )
    for result in step.results:
        _check_result(result, len(graph.outputs), bool(readable))
    return CompiledStep(graph, tuple(step.inputs), tuple(step.results), layout)


def _check_result(result: TracedResult, outputs: int, has_state: bool) -> None:
    kind = result.WhichOneof("kind")
    if kind == "output" and result.output >= outputs:
        raise InvalidArgumentError(f"a traced rule keeps output {result.output} of {outputs}")
    if kind == "constant" and not isinstance(_constant(result), int | float):
        raise InvalidArgumentError("a traced rule keeps a constant that is no number")
    if kind is None and not has_state:
        raise InvalidArgumentError("a traced rule makes no state in the first step")


Settings: TypeAlias = GroupSettings | TracedSettings
"""The settings of a param group: of a class of `torch.optim`, or of a traced rule."""


def settings_of_groups(program: OptimizerProgram) -> Sequence[Settings]:
    """Return the settings of each param group of a program.

    Raises:
        InvalidArgumentError: The class, a hyperparameter or a rule is not acceptable.
        ResourceExhaustedError: A rule is too large.
    """
    if not program.rules:
        return [settings_of(program.class_name, group) for group in program.groups]
    if len(program.rules) != len(program.groups):
        raise InvalidArgumentError(
            f"optimizer {program.name!r} has {len(program.groups)} param groups and "
            f"{len(program.rules)} traced rules; send a rule for each group"
        )
    return list(map(traced_settings, program.rules, program.groups))

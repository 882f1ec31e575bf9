"""What a host does in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stratagem._core.contexts import entered
from stratagem._multi_worker.group import WorkerGroup
from stratagem._shipping.outcome_forms import OutcomeForm, form_of_hosts
from stratagem._strategies.multi_step import MultiStepContext, run_steps
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.answers import OUT_OF_STEP, HostAnswer, Parts, failure_of
from stratagem._tpu.host import HostCores, host_of
from stratagem._tpu.inputs import HostInput, StaticShapes
from stratagem._tpu.values import LoopOutputs, Valued, variable_of


@dataclass(frozen=True)
class Writes:
    """What the program has changed since the previous call."""

    values: Mapping[int, torch.Tensor] = field(default_factory=dict)
    slots: Sequence[tuple[str, int, Mapping[str, torch.Tensor]]] = ()


def carry_out(
    strategy: Strategy,
    state: Sequence[Valued],
    modules: Sequence[nn.Module],
    writes: Writes,
    work: Callable[[], Any],
    is_trusted: bool = False,
) -> Parts:
    """Do the work of a call, in the strategy's cross-replica context; return a `HostAnswer`.

    The `state` are all variables and parameters, the modules those that have buffers. The result
    and the exception are pickled for a program by which the host `is_trusted`.
    """
    host, outcomes = host_of(strategy), form_of_hosts(is_trusted)
    with entered(strategy):
        _take_over(host, state, writes)
        result, error = _done(work, outcomes)
        in_step = _end_together(host.group, error)
        chief = host.group.place.is_chief and in_step
        return HostAnswer(
            result,
            failure_of(error, outcomes) if error else None,
            in_step,
            host.changed_values(state) if in_step else {},
            _buffers_of(modules) if chief else {},
        ).parts()


def _take_over(host: HostCores, state: Sequence[Valued], writes: Writes) -> None:
    for position, value in writes.values.items():
        host.write(state[position], value)
    for optimizer, position, slots in writes.slots:
        host.hosting.set_slots(optimizer, {variable_of(state[position]): slots})


def _done(work: Callable[[], Any], outcomes: OutcomeForm) -> tuple[bytes, BaseException | None]:
    try:
        return outcomes.dump(work()), None
    except Exception as error:
        return b"", error


def _buffers_of(modules: Sequence[nn.Module]) -> dict[tuple[int, str], torch.Tensor]:
    """Return the buffers of the first core, by position of the module and key."""
    return {
        (position, key): buffer
        for position, module in enumerate(modules)
        for key, buffer in module._buffers.items()
        if buffer is not None
    }


def _end_together(group: WorkerGroup, error: BaseException | None) -> bool:
    """Return whether all hosts have ended their work, with or without an error."""
    if isinstance(error, OUT_OF_STEP):
        return False
    try:
        group.exchange("The end of a call", None)
    except OUT_OF_STEP:
        return False
    return True


# What calls are for.


def nothing() -> None:
    """Do no work, in a call that only carries what has changed."""


def loop(
    strategy: Strategy,
    step: Callable[[MultiStepContext, Any], Any],
    inputs: HostInput,
    iterations: int,
) -> Parts:
    """Call a step once for each input, which this host reads; return `LoopOutputs`."""
    context = run_steps(strategy, step, StaticShapes(inputs), iterations, None)
    return LoopOutputs.of(strategy, context).parts()


def run(
    strategy: Strategy, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Call a function once for each core of this host, and return all results."""
    result = strategy.run(function, args, kwargs)
    return strategy.experimental_local_results(result)


def read_slots(
    strategy: Strategy, optimizer: str, trained: Sequence[Valued]
) -> list[Mapping[str, torch.Tensor]]:
    """Return the state of an optimizer for variables and parameters."""
    return [*host_of(strategy).hosting.slots(optimizer, [*map(variable_of, trained)])]


def optimizers_with_state(strategy: Strategy) -> list[str]:
    """Return the names of the optimizers that have state."""
    return [*host_of(strategy).hosting.stateful_optimizers()]

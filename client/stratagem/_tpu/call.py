"""What a host does in one call, and how the call has ended."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stratagem._core.contexts.scope import entered
from stratagem._multi_worker.group import WorkerGroup
from stratagem._shipping.classes import dump_exception
from stratagem._shipping.kinds import dump_result, load_result
from stratagem._strategies.multi_step import MultiStepContext, run_steps
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.host import HostCores, host_of
from stratagem._tpu.inputs import HostInput, StaticShapes
from stratagem._tpu.values import LoopOutputs, Valued, variable_of
from stratagem._worker_client.closure_failure import RemoteTraceback
from stratagem_proto.errors import AbortedError, DeadlineExceededError, UnavailableError

OUT_OF_STEP = (AbortedError, DeadlineExceededError, UnavailableError)
"""Errors after which hosts do not know what the others do."""


@dataclass(frozen=True)
class Writes:
    """What the program has changed since the previous call."""

    values: Mapping[int, torch.Tensor] = field(default_factory=dict)
    slots: Sequence[tuple[str, int, Mapping[str, torch.Tensor]]] = ()


@dataclass(frozen=True)
class HostAnswer:
    """How a call has ended on one host.

    The result is pickled. Only the first host returns the values that have changed, by position in
    the call's `state`, and the buffers of modules, by position in the call's `modules` and by key.
    A host that is not `in_step` cannot go on with the others.
    """

    result: bytes
    error: BaseException | None
    traceback: str
    in_step: bool
    values: Mapping[int, torch.Tensor]
    buffers: Mapping[tuple[int, str], torch.Tensor]

    def load(self) -> Any:
        """Return what the work returned."""
        return load_result(self.result)


def carry_out(
    strategy: Strategy,
    state: Sequence[Valued],
    modules: Sequence[nn.Module],
    writes: Writes,
    work: Callable[[], Any],
) -> HostAnswer:
    """Do the work of a call, in the strategy's cross-replica context.

    The `state` are all variables and parameters, the modules those that have buffers.
    """
    host = host_of(strategy)
    with entered(strategy):
        _take_over(host, state, writes)
        result, error = _done(work)
        in_step = _end_together(host.group, error)
        chief = host.group.place.is_chief and in_step
        return HostAnswer(
            result,
            None if error is None else _portable(error),
            "".join(traceback.format_exception(error)) if error else "",
            in_step,
            host.changed_values(state) if in_step else {},
            _buffers_of(modules) if chief else {},
        )


def _take_over(host: HostCores, state: Sequence[Valued], writes: Writes) -> None:
    for position, value in writes.values.items():
        host.write(state[position], value)
    for optimizer, position, slots in writes.slots:
        host.hosting.set_slots(optimizer, {variable_of(state[position]): slots})


def _done(work: Callable[[], Any]) -> tuple[bytes, BaseException | None]:
    try:
        return dump_result(work()), None
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


def _portable(error: BaseException) -> BaseException:
    try:
        dump_exception(error)
    except Exception as reason:
        return AbortedError(
            f"{type(error).__name__}: {error} (the exception itself could not be sent: {reason})"
        )
    return error


def raised_by(answers: Sequence[HostAnswer], tasks: Sequence[int]) -> BaseException | None:
    """Return the error of a call, caused by its traceback; None if all went well.

    An error of a host itself comes before one that tells of another host.
    """
    failed = [
        (answer, task, answer.error)
        for answer, task in zip(answers, tasks, strict=True)
        if answer.error is not None
    ]
    if not failed:
        whole = all(answer.in_step for answer in answers)
        return None if whole else UnavailableError("a host has left the others")
    own = [one for one in failed if not isinstance(one[2], OUT_OF_STEP)]
    answer, task, error = (own or failed)[0]
    error.__cause__ = RemoteTraceback(f"host {task}", "a call", answer.traceback)
    return error


# What calls are for.


def nothing() -> None:
    """Do no work, in a call that only carries what has changed."""


def loop(
    strategy: Strategy,
    step: Callable[[MultiStepContext, Any], Any],
    inputs: HostInput,
    iterations: int,
) -> LoopOutputs:
    """Call a step once for each input, which this host reads."""
    context = run_steps(strategy, step, StaticShapes(inputs), iterations, None)
    return LoopOutputs.of(strategy, context)


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

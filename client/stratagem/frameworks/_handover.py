"""Handing over to parameter servers a model and an optimizer that are built already."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import Dataset, Subset

from stratagem._core.options import InputContext
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.hosting import Hosting, hosting_of
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.wrapped_optimizer import is_scaled, watch_scalers
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._strategies.strategy import get_strategy
from stratagem.consistency import consistency_from
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError


def adopt(strategy: ParameterServerStrategy, module: nn.Module) -> None:
    """Make variables of the parameters of a module that is built already.

    It is as if the module had been built within `strategy.scope()`; if it was, nothing happens. All
    workers call this for equal modules in the same order. Afterwards they have the chief's values.

    Args:
        strategy: The strategy, of one replica in this process.
        module: The module, as large as its parameters are: none of them can be a table of more
            bytes than this process has.

    Raises:
        InvalidArgumentError: The strategy has several replicas in this process.
        AttachmentError: The chief's module is another one.
        ContextError: A replica is running, another strategy is in charge, or a parameter belongs to
            another one.
    """
    adopter = _hosting(strategy).adopter
    with strategy.scope():
        if not adopter.has_adopted(module):
            adopter.take(module)


def distributed(
    strategy: ParameterServerStrategy, optimizer: Optimizer, **settings: Any
) -> DistributedOptimizer:
    """Return an optimizer for a loop that knows of no strategy.

    It is a `DistributedOptimizer` that refuses what such a loop may do and other workers could not
    follow: writing parameters between steps, and leaving out steps by a `GradScaler`. What was
    written until now is shared by this call, and later by `load_state_dict` of the optimizer or by
    `strategy.refresh()`; all workers write the same before these.

    Args:
        strategy: The strategy, of one replica in this process.
        optimizer: One of `torch.optim` without state, or a `DistributedOptimizer`.
        settings: The other arguments of `DistributedOptimizer` by name.

    Raises:
        InvalidArgumentError: Some parameters are no variables of the strategy, or it has several
            replicas in this process; or as of `DistributedOptimizer`.
        FailedPreconditionError: The optimizer has state already.
    """
    guard = _Guard(strategy, hosting := _hosting(strategy))
    if get_strategy() is strategy:
        hosting.adopter.adopt()  # what the open scope has so far
    _require_all_hosted(strategy, optimizer)
    if not isinstance(optimizer, DistributedOptimizer):
        optimizer = DistributedOptimizer(optimizer, **settings)
    watch_scalers(optimizer)
    optimizer.register_step_pre_hook(guard.before_step)
    optimizer.register_load_state_dict_post_hook(guard.loaded)
    strategy.refresh()
    return optimizer


def sole_device(strategy: ParameterServerStrategy) -> torch.device:
    """Return the device of the only replica of this process.

    Raises:
        InvalidArgumentError: There are several.
    """
    return _hosting(strategy).devices[0]


def _hosting(strategy: ParameterServerStrategy) -> Hosting:
    if not isinstance(strategy, ParameterServerStrategy):
        raise InvalidTypeError(
            f"loops of frameworks train on parameter servers, by a stratagem."
            f"ParameterServerStrategy; this is {strategy!r}"
        )
    hosting = hosting_of(strategy.extended)
    assert hosting is not None
    if len(hosting.devices) != 1:
        raise InvalidArgumentError(
            f"the strategy has {len(hosting.devices)} replicas in this process, and a loop "
            "that knows of no strategy has one; make it by ParameterServerStrategy("
            "num_replicas_per_worker=1), with a worker for each device"
        )
    return hosting


def _require_all_hosted(strategy: ParameterServerStrategy, optimizer: Optimizer) -> None:
    each = [
        (f"parameter {index} of param group {number}, of shape {_shape(parameter)}", parameter)
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
    left_out = [what for what, parameter in each if not _is_hosted(strategy, parameter)]
    if left_out:
        raise InvalidArgumentError(
            f"{len(left_out)} of the {len(each)} parameters of {type(optimizer).__name__} are not "
            f"on the servers of this strategy, the first being {left_out[0]}; each worker would "
            "train its own. Build the whole model within strategy.scope(), or call "
            "stratagem.frameworks.adopt(strategy, model) before"
        )


def _is_hosted(strategy: ParameterServerStrategy, parameter: torch.Tensor) -> bool:
    hosted = hosted_parameter(parameter)
    if hosted is None:
        return strategy.extended._hosting.adopter.reserves(parameter)
    return hosted.variable.distribute_strategy is strategy


def _shape(parameter: torch.Tensor) -> object:
    return "unknown" if is_lazy(parameter) else tuple(parameter.shape)


class _Guard:
    """Looks at what a loop has done since its last step."""

    def __init__(self, strategy: ParameterServerStrategy, hosting: Hosting) -> None:
        self._strategy, self._hosting = strategy, hosting

    def before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Hook; refuses a step of which others could not know what it is based on."""
        self._refuse_scaling(optimizer)
        self._refuse_writes(self._hosting.unshared_writes())

    def loaded(self, optimizer: Optimizer) -> None:
        """Hook; a checkpoint has the parameters as well, which were loaded before."""
        self._strategy.refresh()

    def _refuse_scaling(self, optimizer: Optimizer) -> None:
        if is_scaled(optimizer):
            raise FailedPreconditionError(
                "a GradScaler steps an optimizer whose parameters are on servers; it would "
                "leave out steps in one worker and not in the others, each with a scale of "
                "its own. Train in bfloat16, which needs none, and have steps with gradients "
                'that are not finite dropped by DistributedOptimizer(on_nonfinite="reject")'
            )

    def _refuse_writes(self, names: Sequence[str]) -> None:
        if names:
            raise FailedPreconditionError(
                f"{len(names)} parameters were written between two steps, the first being "
                f"{names[0]!r}; the chief's would replace what all workers have trained "
                "meanwhile. Leave out what averages, swaps or clips weights between "
                "steps. After loading weights without an optimizer's state, which all "
                "workers do alike, call strategy.refresh()",
                variable=names[0],
            )


def input_of(strategy: ParameterServerStrategy) -> InputContext:
    """Return which of the workers that train together this process is, and how many there are."""
    return strategy.extended._input_context()


def updates_of_a_step(strategy: ParameterServerStrategy, consistency: object = None) -> int:
    """Return how many updates all workers make while this one makes one.

    Args:
        strategy: The strategy.
        consistency: That of the optimizer, where it is not the strategy's own.
    """
    workers = input_of(strategy).num_input_pipelines
    if workers == 1:
        return 1
    hosting: Any = strategy.extended._hosting
    own = None if consistency is None else consistency_from(consistency)
    its = own or hosting._store.step_tracker.declared
    return 1 if its._closes_steps else workers


def part(strategy: ParameterServerStrategy, dataset: Dataset[Any]) -> Subset[Any]:
    """Return what this worker reads of a dataset that all workers have.

    It is each n-th example of n workers'. All parts are equally large, so that all workers take as
    many steps: up to n - 1 examples at the end are in no part.

    Args:
        strategy: The strategy.
        dataset: A dataset with a length, the same in all workers.
    """
    context, length = input_of(strategy), len(dataset)  # type: ignore[arg-type]
    workers = context.num_input_pipelines
    return Subset(dataset, range(context.input_pipeline_id, length - length % workers, workers))


def gathered(strategy: ParameterServerStrategy, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that the workers call this with, in the order of the workers.

    All workers call it equally often, and wait for each other, as at a barrier. Shapes and dtypes
    may differ. A coordinator's program and an evaluator have none but their own.

    Raises:
        FailedPreconditionError: A worker was started again, and has not gathered as often.
        DeadlineExceededError: A worker did not come.
    """
    if input_of(strategy).num_input_pipelines == 1:
        return [tensor]
    meet = partial(strategy.barrier, "gather")
    return strategy.extended._cluster.gather(tensor, meet)

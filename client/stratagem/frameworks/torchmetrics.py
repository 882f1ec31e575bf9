"""Metrics of torchmetrics over what all workers have seen.

Needs the package `torchmetrics`: `pip install 'stratagem[torchmetrics]'`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem.frameworks._handover import gathered
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError

try:
    import torchmetrics
    from torchmetrics.utilities.data import dim_zero_cat
except ImportError as error:
    raise ImportError(
        "torchmetrics must be installed before its metrics count what all workers have seen: run "
        "`pip install 'stratagem[torchmetrics]'`"
    ) from error

__all__ = ["compute"]


def compute(strategy: ParameterServerStrategy, metric: nn.Module) -> Any:
    """Return what a metric is over all that all workers have updated it with.

        accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=10)
        for images, digits in part(strategy, held_out):
            accuracy.update(model(images), digits)
        print(compute(strategy, accuracy))

    All workers call this for equal metrics in the same order, and wait for each other, as at a
    barrier. Each gets the same. The metric itself is as before: its own `compute()` returns what
    this worker has seen, and further updates are added to that.

    Args:
        strategy: The strategy.
        metric: A `torchmetrics.Metric`, or a `torchmetrics.MetricCollection`.

    Raises:
        InvalidTypeError: It is none of these.
        InvalidArgumentError: A metric in it brings its state together by itself, as
            `MeanAveragePrecision` does.
        FailedPreconditionError: The metrics of the workers differ, or their states are lists of
            different lengths whose elements stay apart; or a worker was started again.
        DeadlineExceededError: A worker did not come.
    """
    parts = _metrics_of(metric)
    _require_equal([_described(each) for each in parts], strategy)
    with ExitStack() as undo:
        for each in parts:
            undo.enter_context(_gathering(each, strategy))
        return metric.compute()  # type: ignore[operator]


def _metrics_of(metric: nn.Module) -> Sequence[Any]:
    if not isinstance(metric, (torchmetrics.Metric, torchmetrics.MetricCollection)):
        raise InvalidTypeError(
            f"compute reduces a torchmetrics.Metric or MetricCollection, and this is {metric!r}"
        )
    found: list[Any] = [each for each in metric.modules() if isinstance(each, torchmetrics.Metric)]
    for each in found:
        if type(each)._sync_dist is not torchmetrics.Metric._sync_dist:
            raise InvalidArgumentError(
                f"{type(each).__name__} brings its state together by torch.distributed itself, "
                "which parameter servers have none of; compute it in one worker, of all data"
            )
    return found


def _described(metric: Any) -> Mapping[str, Any]:
    """Return what has to be the same in all workers for states to meet their like."""
    return {
        "metric": type(metric).__name__,
        **{key: _kind(metric, key) for key in metric._defaults},
    }


def _kind(metric: Any, key: str) -> str:
    state = getattr(metric, key)
    if isinstance(state, torch.Tensor):
        return "a tensor"
    if metric._reductions[key] is dim_zero_cat:
        return "rows"
    return f"a list of {len(state)} tensors"


def _require_equal(
    described: Sequence[Mapping[str, Any]], strategy: ParameterServerStrategy
) -> None:
    own = json.dumps(described)
    for worker, told in enumerate(gathered(strategy, torch.tensor([*own.encode()]))):
        other = bytes(told.tolist()).decode()
        if other != own:
            raise FailedPreconditionError(
                f"this worker computes {own}, and worker {worker} {other}; all workers compute the "
                "same metrics in the same order, and lists whose elements stay apart have to be "
                "equally long: update the metrics equally often, as often as the shortest part"
            )


@contextmanager
def _gathering(metric: Any, strategy: ParameterServerStrategy) -> Iterator[None]:
    """Have a metric compute of what all workers have, in this block."""
    before = metric.dist_sync_fn, metric.distributed_available_fn, metric._to_sync
    metric.dist_sync_fn, metric.distributed_available_fn = _gather_by(strategy), _always
    # What it has computed is of this worker alone, and what it computes now is not.
    metric._to_sync, metric._computed = True, None
    try:
        with _rows_of_lists(metric):
            yield
    finally:
        if metric._is_synced:
            metric.unsync()
        metric.dist_sync_fn, metric.distributed_available_fn, metric._to_sync = before
        metric._computed = None


@contextmanager
def _rows_of_lists(metric: Any) -> Iterator[None]:
    """Give a metric that has seen nothing no rows, which others can put beside theirs."""
    empty = [
        key
        for key in metric._defaults
        if _kind(metric, key) == "rows" and not len(getattr(metric, key))
    ]
    for key in empty:
        getattr(metric, key).append(torch.zeros(0, device=metric.device))
    try:
        yield
    finally:
        for key in empty:
            getattr(metric, key).clear()


def _gather_by(strategy: ParameterServerStrategy) -> Callable[..., list[torch.Tensor]]:
    def gather(tensor: torch.Tensor, group: object = None) -> list[torch.Tensor]:
        found = [each.to(tensor.device) for each in gathered(strategy, tensor)]
        rows = [each for each in found if each.numel()]
        like = rows[0] if rows else tensor
        return [each if each.numel() else like.new_empty((0, *like.shape[1:])) for each in found]

    return gather


def _always() -> bool:
    return True

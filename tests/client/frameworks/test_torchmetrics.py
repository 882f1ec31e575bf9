"""Metrics of torchmetrics over what all workers have seen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from stratagem import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from stratagem.frameworks.torchmetrics import compute
from tests.client.clusters import running
from tests.full import a_few

CLASSES, ROWS = 4, 60
GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(ROWS, CLASSES, generator=GENERATOR).softmax(1)
LABELS = torch.randint(CLASSES, (ROWS,), generator=GENERATOR)

Update = Callable[[Any, slice], None]

torchmetrics: Any = None


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Load it late, since all that load tests would wait for it."""
    globals()["torchmetrics"] = import_module("torchmetrics")


def classified(metric: Any, rows: slice) -> None:
    metric.update(SCORES[rows], LABELS[rows])


def averaged(metric: Any, rows: slice) -> None:
    metric.update(SCORES[rows, 0])


def regressed(metric: Any, rows: slice) -> None:
    metric.update(SCORES[rows, 0], SCORES[rows, 1])


def collection() -> Any:
    kinds = torchmetrics.classification
    accuracy = kinds.MulticlassAccuracy(num_classes=CLASSES)
    return torchmetrics.MetricCollection([accuracy, kinds.MulticlassF1Score(num_classes=CLASSES)])


def by_class() -> Any:
    accuracy = torchmetrics.classification.MulticlassAccuracy
    return torchmetrics.ClasswiseWrapper(accuracy(num_classes=CLASSES, average=None))


METRICS: dict[str, tuple[Callable[[], Any], Update]] = {
    "sums": (lambda: torchmetrics.MeanMetric(), averaged),
    "a maximum": (lambda: torchmetrics.MaxMetric(), averaged),
    "rows": (lambda: torchmetrics.CatMetric(), averaged),
    "rows of two states": (
        lambda: torchmetrics.AUROC(task="multiclass", num_classes=CLASSES),
        classified,
    ),
    "states that stay apart": (lambda: torchmetrics.PearsonCorrCoef(), regressed),
    "a collection": (collection, classified),
    "a metric in another one": (by_class, classified),
    "not synchronized by itself": (
        lambda: torchmetrics.MeanMetric(sync_on_compute=False),
        averaged,
    ),
}


def values(found: Any) -> list[float]:
    if isinstance(found, dict):
        return [value for key in sorted(found) for value in values(found[key])]
    return sorted(found.reshape(-1).tolist())


# Unequal parts, in several updates, as a loader gives them.
PARTS = [
    [slice(0, 10), slice(10, 35)],
    [slice(35, 40), slice(40, 41), slice(41, ROWS)],
]


@a_few("name", METRICS, "states of metrics are summed, joined or compared", 4)
def test_all_workers_get_what_one_would_get_of_all_data(name: str) -> None:
    make, update = METRICS[name]
    alone = make()
    update(alone, slice(0, ROWS))
    wanted = values(alone.compute())

    def evaluate(strategy: ParameterServerStrategy, worker: int) -> tuple[Any, Any, Any]:
        metric = make()
        for rows in PARTS[worker]:
            update(metric, rows)
        own = values(metric.compute())
        found = values(compute(strategy, metric))
        return own, found, values(metric.compute())

    with running(1, num_workers=2) as cluster:
        for own, found, after in cluster.run(evaluate):
            assert found == pytest.approx(wanted, rel=1e-5)
            assert after == own
            assert own != pytest.approx(wanted, rel=1e-5) or name == "a maximum"


def test_updates_after_it_count_once() -> None:
    def evaluate(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        metric = torchmetrics.SumMetric()
        found = []
        for _ in range(3):
            metric.update(float(worker + 1))
            found.append(float(compute(strategy, metric)))
        return found

    with running(1, num_workers=2) as cluster:
        assert cluster.run(evaluate) == [[3.0, 6.0, 9.0]] * 2


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
@pytest.mark.parametrize("name", ["sums", "rows", "rows of two states"])
def test_a_worker_that_has_seen_nothing_changes_nothing(name: str) -> None:
    make, update = METRICS[name]
    alone = make()
    update(alone, slice(0, ROWS))

    def evaluate(strategy: ParameterServerStrategy, worker: int) -> Any:
        metric = make()
        if worker == 0:
            update(metric, slice(0, ROWS))
        return values(compute(strategy, metric))

    with running(1, num_workers=2) as cluster:
        for found in cluster.run(evaluate):
            assert found == pytest.approx(values(alone.compute()))


def test_different_metrics_are_refused_in_all_workers() -> None:
    def evaluate(strategy: ParameterServerStrategy, worker: int) -> None:
        metric = torchmetrics.SumMetric() if worker else torchmetrics.MeanMetric()
        metric.update(1.0)
        with pytest.raises(FailedPreconditionError, match=r"MeanMetric.*SumMetric|SumMetric.*Mean"):
            compute(strategy, metric)

    with running(1, num_workers=2) as cluster:
        cluster.run(evaluate)


def test_lists_that_stay_apart_are_refused_where_their_lengths_differ() -> None:
    class Apart(torchmetrics.Metric):  # type: ignore[misc] # its types are not read
        def __init__(self) -> None:
            super().__init__()
            self.add_state("seen", default=[], dist_reduce_fx=None)

        def update(self, value: torch.Tensor) -> None:
            self.seen.append(value)

        def compute(self) -> torch.Tensor:
            return torch.stack([each.sum() for each in self.seen]).sum()

    def evaluate(strategy: ParameterServerStrategy, worker: int) -> float:
        metric = Apart()
        for _ in range(2):
            metric.update(torch.ones(worker + 1))
        found = float(compute(strategy, metric))
        metric.update(torch.ones(1))
        if worker:
            metric.update(torch.ones(1))
        with pytest.raises(FailedPreconditionError, match="a list of 3 tensors"):
            compute(strategy, metric)
        return found

    with running(1, num_workers=2) as cluster:
        assert cluster.run(evaluate) == [6.0, 6.0]


def test_what_brings_its_state_together_itself_is_refused() -> None:
    class Own(torchmetrics.SumMetric):  # type: ignore[misc] # its types are not read
        def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
            """By torch.distributed."""

    with pytest.raises(InvalidArgumentError, match="Own"):
        compute(ParameterServerStrategy(), Own())


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="Linear"):
        compute(ParameterServerStrategy(), torch.nn.Linear(1, 1))


def test_alone_it_is_the_metric_itself() -> None:
    metric = torchmetrics.MeanMetric()
    averaged(metric, slice(0, ROWS))
    assert compute(ParameterServerStrategy(), metric) == metric.compute()

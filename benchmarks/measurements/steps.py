"""Training steps with one thing more, beside the same steps without it.

The servers are processes of their own on loopback. A step is a `run`: a pull, forward,
backward, and a push to two servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.harness.report import Table
from benchmarks.harness.turns import alternate, timed
from stratagem import ClusterSpec, DistributedOptimizer, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem_deploy import LocalCluster

_SERVERS = 2


@dataclass(frozen=True)
class Model:
    """A stack of linear layers.

    Attributes:
        layers: How many.
        width: Inputs and outputs of each.
        batch: Rows that go through them in a step.
    """

    layers: int
    width: int
    batch: int


@dataclass(frozen=True)
class Comparison:
    """Steps of one model with and without something.

    Attributes:
        what: What it is.
        model: The model.
        optimizer: What it is to the optimizer.
        consistency: Of the strategy.
        turn: How many steps are timed at once.
    """

    what: str
    model: Model
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    consistency: str = "async"
    turn: int = 1


# Backward takes long beside what is sent, and is short beside a round trip.
_LONG, _SHORT = Model(8, 1024, 512), Model(2, 16, 4)

COMPARISONS = (
    Comparison("overlap=True", _LONG, {"overlap": True}),
    Comparison("clip_norm=1, sync", _SHORT, {"clip_norm": 1.0}, "sync", turn=20),
    Comparison("clip_norm=1, sync", _LONG, {"clip_norm": 1.0}, "sync"),
)


@dataclass(frozen=True)
class Row:
    """What steps of one model took.

    Attributes:
        what: What there was more.
        model: The model.
        milliseconds: Median of a step with it.
        spread: Interquartile range of the durations over their median.
        ratio: That median over the one of steps without it.
    """

    what: str
    model: Model
    milliseconds: float
    spread: float
    ratio: float


def measure(
    comparisons: Sequence[Comparison], rounds: int, report: Callable[[str], None]
) -> list[Row]:
    """Times steps with and without each thing in turns.

    Args:
        comparisons: What to compare.
        rounds: Turns of each after warming up.
        report: Told what is measured next.
    """
    torch.set_num_threads(1)
    rows = []
    for comparison in comparisons:
        report(f"{comparison.what}, {_described(comparison.model)}")
        rows.append(_measured(comparison, rounds))
    return rows


def table(rows: Sequence[Row]) -> Table:
    """The figures as people read them."""
    columns = ("", "model", "ms", "spread", "of a step without")
    return Table(columns, [*map(_cells, rows)])


def _cells(row: Row) -> Sequence[str]:
    figures = (f"{row.milliseconds:.1f}", f"{row.spread:.2f}", f"{row.ratio:.2f}")
    return row.what, _described(row.model), *figures


def _described(model: Model) -> str:
    return f"{model.layers} layers of {model.width}, batch of {model.batch}"


def _measured(comparison: Comparison, rounds: int) -> Row:
    with ExitStack() as stack:
        steps = [
            stack.enter_context(_training(comparison, settings))
            for settings in ({}, comparison.optimizer)
        ]
        contestants = {"without": timed(steps[0]), "with": timed(steps[1])}
        timings = alternate(contestants, rounds)
    sample = timings["with"]
    return Row(
        comparison.what,
        comparison.model,
        milliseconds=1000 * sample.median / comparison.turn,
        spread=sample.spread,
        ratio=sample.median / timings["without"].median,
    )


@contextmanager
def _training(
    comparison: Comparison, settings: Mapping[str, Any]
) -> Iterator[Callable[[], None]]:
    """What takes some steps, on servers of its own."""
    model = comparison.model
    with (
        LocalCluster(ps=_SERVERS, workers=1, processes=True) as cluster,
        ParameterServerStrategy(
            _alone(cluster.cluster_resolver),
            consistency=comparison.consistency,
            token=cluster.cluster_resolver.cluster_token,
        ) as strategy,
    ):
        with strategy.scope():
            layers = [nn.Linear(model.width, model.width) for _ in range(model.layers)]
            network = nn.Sequential(*layers)
        sgd = torch.optim.SGD(network.parameters(), lr=1e-3)
        optimizer = DistributedOptimizer(sgd, **settings)
        batch = torch.randn(model.batch, model.width)

        def replica_step() -> None:
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()

        def turn() -> None:
            for _ in range(comparison.turn):
                strategy.run(replica_step)

        yield turn


def _alone(resolver: ClusterResolver) -> ClusterResolver:
    """The same servers with this program as the only one that trains."""
    servers = resolver.cluster_spec().as_dict()["ps"]
    cluster = ClusterSpec({"ps": servers, "chief": ["this.invalid:1"]})
    return SimpleClusterResolver(cluster, task_type="chief", task_id=0)

"""How training goes, written for TensorBoard.

Needs the package `tensorboard`: `pip install 'stratagem[tensorboard]'`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from typing_extensions import Self

from stratagem._strategies.strategy import Strategy
from stratagem.consistency import mean_staleness

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from stratagem._ps_client.transport import Traffic
    from stratagem.consistency import ConsistencyReport

__all__ = ["ScalarWriter"]


class ScalarWriter:
    """Writes numbers of a program, and how the workers of its strategy fare.

        with stratagem.tensorboard.ScalarWriter(strategy, "runs/demo") as scalars:
            for step in range(1000):
                loss = train_step()
                scalars.write(step, {"loss": loss})

    All workers may run the same program: only the one that `should_save_summary`, which is the
    chief, writes anything. Of a cluster it writes besides, under "stratagem/", the steps of this
    program and what it sends and receives by the second, and for each optimizer and worker the
    steps it has taken, how stale they were on average since the last look, and its contributions
    that were dropped.

    Args:
        strategy: The strategy.
        folder: Where TensorBoard looks; it is made if there is none.
        every: Seconds between two looks at the cluster, each of which asks a server.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(
        self, strategy: Strategy, folder: str | os.PathLike[str], every: float = 10.0
    ) -> None:
        writes = strategy.extended.should_save_summary
        self._writer = _summary_writer(folder) if writes else None
        self._cluster = strategy if isinstance(strategy, _OnServers) else None
        self._every = every
        self._last = _Look(time.monotonic())

    def write(self, step: int, scalars: Mapping[str, float | torch.Tensor] | None = None) -> None:
        """Write numbers by their names, and look at the cluster if it is time.

        Call it outside of `strategy.run`.

        Args:
            step: Their place on the axis, from 0 or 1 upwards.
            scalars: Numbers, or tensors of one element; those of several replicas have to be
                reduced before.
        """
        if self._writer is None:
            return
        for name, value in (scalars or {}).items():
            self._writer.add_scalar(name, float(value), step)
        now = time.monotonic()
        if self._cluster is not None and now - self._last.time >= self._every:
            look = _Look(now, step, self._cluster)
            for name, number in look.since(self._last):
                self._writer.add_scalar(f"stratagem/{name}", number, step)
            self._last = look

    def close(self) -> None:
        """Write what is not on disk yet; again does nothing."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@runtime_checkable
class _OnServers(Protocol):
    """A strategy whose variables are on servers."""

    def traffic(self) -> Traffic: ...

    def consistency_report(self) -> dict[str, ConsistencyReport]: ...


class _Look:
    """What the cluster says at one moment; before the first look, nothing."""

    def __init__(
        self, time: float, step: int | None = None, cluster: _OnServers | None = None
    ) -> None:
        self.time, self.step = time, step
        self.traffic = cluster.traffic() if cluster else None
        self.reports = cluster.consistency_report() if cluster else {}

    def since(self, last: _Look) -> Iterator[tuple[str, float]]:
        """What to write, by name."""
        seconds = self.time - last.time
        if last.traffic and self.traffic and self.step is not None:
            passed = self.traffic - last.traffic
            yield "steps_per_second", (self.step - (last.step or 0)) / seconds
            yield "sent_bytes_per_second", passed.sent_bytes / seconds
            yield "received_bytes_per_second", passed.received_bytes / seconds
        for optimizer, report in self.reports.items():
            known = last.reports.get(optimizer)
            for task, worker in report.workers.items():
                place = f"{optimizer}/{_label(task)}"
                yield f"{place}/steps", worker.steps
                yield f"{place}/dropped", worker.dropped
                before = known.workers.get(task) if known else None
                mean = mean_staleness(worker.staleness, before.staleness if before else {})
                if mean is not None:
                    yield f"{place}/staleness", mean


def _label(task: str) -> str:
    return task.removeprefix("/job:").replace("/task:", ":")


def _summary_writer(folder: str | os.PathLike[str]) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard must be installed before scalars are written for it: run "
            "`pip install 'stratagem[tensorboard]'`"
        ) from error
    return SummaryWriter(os.fspath(folder))

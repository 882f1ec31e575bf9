"""Steps of a click model, timed, and tests of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

import stratagem

from .log import MEASUREMENTS, ROWS, Batch
from .model import DLRM

DIM, RATE, TABLE_RATE = 16, 0.02, 0.05


class Stopwatch:
    """Adds up how long the phases of steps take.

    Args:
        device: Whose work counts.

    Attributes:
        seconds: By phase.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._device = device

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times the block."""
        start = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[name] += time.perf_counter() - start


class Trainer:
    """One worker's model, with what trains and tests it.

    Args:
        strategy: Keeps the variables.
        device: Computes with them.
        rows: How many ids each column has.
    """

    def __init__(
        self,
        strategy: stratagem.ParameterServerStrategy,
        device: torch.device,
        rows: Sequence[int] = ROWS,
    ) -> None:
        self.strategy, self.device, self.watch = strategy, device, Stopwatch(device)
        with strategy.scope():
            self.model = DLRM(MEASUREMENTS, rows, DIM)
        groups: list[dict[str, Any]] = [
            {"params": [*self.model.tables.parameters()], "lr": TABLE_RATE},
            {"params": [*self.model.bottom.parameters()]},
            {"params": [*self.model.top.parameters()]},
        ]
        adagrad = torch.optim.Adagrad(groups, RATE)
        self.optimizer = stratagem.DistributedOptimizer(adagrad)

    def ahead(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """The batches; the push of each step brings the rows of the next one."""
        return self.strategy.lookahead(batches, self._lookups)

    def _lookups(self, batch: Batch) -> Iterable[tuple[nn.Module, Tensor]]:
        return zip(self.model.tables, batch.ids.to(self.device), strict=True)

    def train(self, batch: Batch) -> float:
        """Takes a step; returns the loss."""
        with self.watch.phase("step"):
            loss: float = self.strategy.run(self._step, args=(batch.to(self.device),))
        return loss

    def _step(self, batch: Batch) -> float:
        with self.watch.phase("compute"):
            logits = self.model(batch.dense, batch.ids)
            loss = functional.binary_cross_entropy_with_logits(logits, batch.clicked)
            self.optimizer.zero_grad()
            loss.backward()
        with self.watch.phase("push"):
            self.optimizer.step()
        return loss.item()

    def test(self, batches: Iterable[Batch]) -> Test:
        """Compares the model's answers with the clicks and their chances."""
        asked = [(batch, self.chances(batch)) for batch in batches]
        clicked = torch.cat([batch.clicked for batch, _ in asked])
        chance = torch.cat([batch.chance for batch, _ in asked])
        found = torch.cat([found for _, found in asked])
        return Test(
            log_loss(clicked, found),
            log_loss(clicked, chance),
            roc_auc_score(clicked, found),
            roc_auc_score(clicked, chance),
        )

    def chances(self, batch: Batch) -> Tensor:
        """The model's probabilities of clicks, on the CPU."""
        logits: Tensor = self.strategy.run(self._ask, args=(batch.to(self.device),))
        return logits.sigmoid().cpu()

    @torch.no_grad()
    def _ask(self, batch: Batch) -> Tensor:
        self.model.prefetch(batch.ids)
        logits: Tensor = self.model(batch.dense, batch.ids)
        return logits


class Test(NamedTuple):
    """How good the model is on examples that it has not seen.

    Attributes:
        loss: Mean cross entropy.
        least_loss: That of the true chances.
        auc: Area under the ROC curve.
        most_auc: That of the true chances.
    """

    loss: float
    least_loss: float
    auc: float
    most_auc: float

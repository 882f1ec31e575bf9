"""The click model of `examples/dlrm.py` on a fifth of its rows: what all contestants share.

The file has the same examples and the same initial dense weights for all of them. The first pass
over it stores all rows that its ids have; a steady step finds all of them. In each later pass, the
clicks are drawn anew with the chances that they have. With the same ones, the model would learn all
examples by heart in three passes; the gradients would become so small that their squares are
denormal numbers, with which processors take ten times as long, and which TensorFlow rounds to zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

COLUMNS, MEASUREMENTS, DIM = 26, 13, 16
ROWS = tuple(2_000_000 // rank for rank in range(1, COLUMNS + 1))
"""7.7 million rows, 493 MB."""

RATE, TABLE_RATE, SPREAD = 0.02, 0.05, 0.05
EPSILON = 1e-10
EXAMPLES = 32 * 4096
TURN = 4 * 4096
"""Examples of each worker that an answer about steady steps is measured with."""


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        dense: float32 (N, 13).
        ids: int64 (26, N).
        clicked: float32 (N,), 0 or 1.
    """

    dense: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    clicked: npt.NDArray[np.float32]


class Log:
    """The examples of a file, and the initial weights and biases of the dense layers.

    Attributes:
        examples: All of them.
        weights: Of `bottom` and then `top`, a weight (out, in) and a bias (out,) for each layer.
    """

    def __init__(self, file: str) -> None:
        with np.load(file) as found:
            self.examples = Batch(found["dense"], found["ids"], found["clicked"])
            self._chance = found["chance"]
            self.weights: list[Any] = [found[f"weight{n}"] for n in range(12)]

    def batches(
        self, size: int, worker: int = 0, workers: int = 1, number: int = 0
    ) -> Iterator[Batch]:
        """One pass over the examples of a worker, in whole batches; the first has the number 0."""
        dense, ids, clicked = self.examples
        if number:
            drawn = np.random.default_rng(number).random(EXAMPLES, np.float32)
            clicked = (drawn < self._chance).astype(np.float32)
        for first in range(worker * size, EXAMPLES, workers * size):
            span = slice(first, first + size)
            # Contiguous, as what a program's loader makes.
            yield Batch(dense[span], np.ascontiguousarray(ids[:, span]), clicked[span])

    def endless(self, size: int, worker: int = 0, workers: int = 1) -> Iterator[Batch]:
        """The passes after the first one."""
        for number in count(1):
            yield from self.batches(size, worker, workers, number)


class Trial(Protocol):
    """A cluster, or a loop, with a model whose tables have no trained rows at first."""

    def first_pass(self, size: int) -> float:
        """Train on the whole file once; return the mean loss of the last quarter."""

    def steps(self, size: int) -> None:
        """Have each worker train on `TURN` more examples, in batches of that size."""

    def processor_seconds(self, of: str) -> float:
        """Return what its processes have used so far: "all" of them, or its "servers"."""

    def close(self) -> None:
        """End it."""


class Contestant:
    """Answers questions such as "steady 1024 time".

    "first" is the first pass of a new trial and "steady" goes on with the last one. What is
    answered of either is its "time", what "all" processes or the "servers" used of processors, in
    seconds an example, or the "loss".

    Args:
        begin: Begins a trial.
        workers: How many workers take the steps of a trial.
    """

    def __init__(self, begin: Callable[[], Trial], workers: int) -> None:
        self._begin, self._workers = begin, workers
        self._trial: Trial | None = None
        self._losses: dict[str, list[float]] = {}

    def __call__(self, question: str, seconds: float) -> float:
        """Measure for at least one turn; a loss is that of a pass that was measured before."""
        phase, size, what = question.split()
        if what == "loss" and self._losses.get(size):
            return self._losses[size].pop()
        if phase == "first":
            self.close()
            return self._measured(lambda trial: self._first_pass(trial, size), EXAMPLES, what)
        if self._trial is None:
            self._new().first_pass(4096)
        return self._measured(lambda trial: trial.steps(int(size)), TURN * self._workers, what)

    def _first_pass(self, trial: Trial, size: str) -> float:
        loss = trial.first_pass(int(size))
        self._losses.setdefault(size, []).append(loss)
        return loss

    def _new(self) -> Trial:
        self._trial = self._begin()
        return self._trial

    def _measured(self, run: Callable[[Trial], float | None], examples: int, what: str) -> float:
        trial = self._trial or self._new()

        def now() -> float:
            return time.perf_counter() if what == "time" else trial.processor_seconds(what)

        if what == "loss":
            return run(trial) or 0.0
        before = now()
        run(trial)
        return (now() - before) / examples

    def close(self) -> None:
        """End the trial, if there is one."""
        if self._trial is not None:
            self._trial.close()
            self._trial = None


def last_quarter(losses: Sequence[float]) -> float:
    """Return the mean loss of the last quarter of a pass."""
    return float(np.mean(losses[-max(1, len(losses) // 4) :]))

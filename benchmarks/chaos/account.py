"""What the coordinator tells of the training, in files that outlive it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.movielens import RATE

# Of a moment, so that the size of the file tells how many there are.
_LINE_BYTES = 16


@dataclass(frozen=True)
class Outcome:
    """What became of the training.

    Attributes:
        error: The RMSE on the held-out ratings.
        passes: How many passes over the ratings there were.
        batches: How many batches each has.
        miscounted: How many ratings were not trained on once in each pass.
        surplus: By how much the sum of the numbers of all ratings is too large.
    """

    error: float
    passes: int
    batches: int
    miscounted: int
    surplus: int


class Account:
    """The account of one training.

    Args:
        folder: Where its files are.
        seconds: How long it is to take, from `begin` on.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds

    @classmethod
    def of(cls, folder: Path) -> Account:
        """Return the account of a folder in which one was planned."""
        return cls(folder, float((folder / "seconds").read_text()))

    def plan(self) -> None:
        """Tell coordinators how long it is to take."""
        (self._folder / "seconds").write_text(str(self._seconds))

    def begin(self) -> None:
        """Let the time run from now on."""
        self._write("began", str(time.monotonic()))

    def finish(self) -> None:
        """Let the training end with the present pass."""
        (self._folder / "enough").touch()

    @property
    def is_enough(self) -> bool:
        """Whether it is to end with the present pass."""
        return (self._folder / "enough").exists()

    def rate(self, number: int) -> float:
        """Return the learning rate of a pass, which falls with the time that has passed before.

        A coordinator that goes on with a pass has the rate of the one that began it.
        """
        rates = self.rates()
        if number == len(rates):
            rates.append(RATE * (1.0 + math.cos(math.pi * self._share())) / 2.0)
            self._write("rates", json.dumps(rates))
        return rates[number]

    def rates(self) -> list[float]:
        """Return the rates of all passes so far."""
        file = self._folder / "rates"
        rates: list[float] = json.loads(file.read_text()) if file.exists() else []
        return rates

    def _share(self) -> float:
        """Return which part of the time is over."""
        file = self._folder / "began"
        elapsed = time.monotonic() - float(file.read_text()) if file.exists() else 0.0
        return min(elapsed / self._seconds, 1.0)

    def _write(self, name: str, text: str) -> None:
        """Write a file that is there in full or not at all."""
        new = self._folder / f"{name}.new"
        new.write_text(text)
        new.rename(self._folder / name)

    def note_step(self) -> None:
        """Note that the result of a function has come."""
        with (self._folder / "steps").open("a") as file:
            file.write(f"{time.monotonic():{_LINE_BYTES - 1}.3f}\n")

    def steps(self) -> Sequence[float]:
        """Return when results came, in seconds of the clock of this machine."""
        file = self._folder / "steps"
        return [float(line) for line in file.read_text().splitlines()] if file.exists() else []

    def taken(self) -> int:
        """Return how many steps were taken so far."""
        file = self._folder / "steps"
        return file.stat().st_size // _LINE_BYTES if file.exists() else 0

    def conclude(self, outcome: Outcome) -> None:
        """Tell what became of it."""
        self._write("outcome", json.dumps(asdict(outcome)))

    def outcome(self) -> Outcome:
        """Return what became of it, after its end."""
        return Outcome(**json.loads((self._folder / "outcome").read_text()))

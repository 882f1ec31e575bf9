"""Which programs there are, and what they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Program:
    """A program that trains by the loop of a package.

    Attributes:
        name: Of its file.
        package: As PyPI calls it.
        what: What trains what.
    """

    name: str
    package: str
    what: str

    @property
    def text(self) -> str:
        """The program as it is without servers."""
        return (SCRIPTS / f"{self.name}.py").read_text(encoding="utf-8")

    @property
    def version(self) -> str:
        """Of the package; empty if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


PROGRAMS: Sequence[Program] = (
    Program("deepctr_movielens", "deepctr-torch", "DeepFM: who likes which film"),
    Program("deepxde_poisson", "deepxde", "three layers: an equation of Poisson"),
    Program("mmengine_movielens", "mmengine", "factors: stars of a user for a film"),
    Program("poutyne_digits", "poutyne", "two layers: digits"),
    Program("accelerated_digits", "pytorch-accelerated", "two layers: digits"),
    Program("ignite_digits", "pytorch-ignite", "two layers: digits"),
    Program(
        "metric_learning_digits", "pytorch-metric-learning", "two layers: which digits are alike"
    ),
    Program("tabnet_digits", "pytorch-tabnet", "TabNet: digits"),
    Program("recbole_movielens", "recbole", "BPR: films that a user has seen"),
    Program("skorch_digits", "skorch", "two layers with dropout: digits"),
)

"""Inputs that everybody has: with them, fuzzing begins where it has been before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CORPORA = Path(__file__).parent / "corpora"
"""A folder for each decoder, with the inputs that `merging` has found to be worth keeping."""


def corpus_of(name: str) -> Iterator[bytes]:
    """Read the inputs for a decoder."""
    for file in sorted((CORPORA / name).glob("*")):
        yield file.read_bytes()

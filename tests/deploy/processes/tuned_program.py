"""A program that sets something before it loads torch, unless it is set."""

import os
import sys

os.environ.setdefault("TUNED", "late" if "torch" in sys.modules else "first")

import torch  # noqa: F401


def main() -> None:
    """Print it."""
    print(os.environ["TUNED"])

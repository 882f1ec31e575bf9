"""A program that runs the code that is its argument, with libraries that were loaded before."""

from __future__ import annotations

import sys

import numpy  # noqa: F401
import torch  # noqa: F401


def main() -> None:
    exec(sys.argv[1], {"__name__": "__main__"})


if __name__ == "__main__":
    main()

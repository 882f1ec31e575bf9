"""A program that runs the code that is its argument."""

from __future__ import annotations

import sys


def main() -> None:
    exec(sys.argv[1], {"__name__": "__main__"})


if __name__ == "__main__":
    main()

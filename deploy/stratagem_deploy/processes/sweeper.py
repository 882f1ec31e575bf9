"""Owns a directory for as long as its standard input stays open, then removes it.

Usage: python -I -S sweeper.py, which writes the directory's path to its output.

A process of its own, because one that is killed cannot remove anything any more.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path


def main() -> None:
    path = Path(tempfile.mkdtemp(prefix="stratagem-"))
    print(path, flush=True)
    sys.stdin.read()
    # Processes that die together with the owner may still be writing into it.
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()

"""A reader server, as a module that has loaded all that one needs before it is forked."""

from __future__ import annotations

from stratagem_reader.cli import main
from stratagem_reader.server import ReaderServer

__all__ = ["ReaderServer", "main"]

if __name__ == "__main__":
    main()

"""A process that replaces views by its own as often as it can.

python -m tests.psserver.replication.arbiters.rivals FOLDER NUMBER LAST

It prints the epochs of the views that it has written, until one has epoch LAST.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from stratagem_proto.v1.replication_pb2 import View
from tests.psserver.replication.arbiters.places import Folder, arbiter_at, view


async def compete(folder: Path, number: int, last: int) -> list[int]:
    """Returns the epochs of the views that this process has written."""
    arbiter = arbiter_at(Folder(folder))
    won: list[int] = []
    present = await arbiter.read()
    while _epoch(present) < last:
        following = view(_epoch(present) + 1, number)
        if await arbiter.replace(present, following):
            won.append(following.epoch)
        present = await arbiter.read()
    await arbiter.close()
    return won


def _epoch(present: View | None) -> int:
    return present.epoch if present is not None else 0


if __name__ == "__main__":
    print(*asyncio.run(compete(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))

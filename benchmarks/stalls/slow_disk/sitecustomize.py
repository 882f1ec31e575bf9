"""Makes the disk of one parameter server slow while there is a file that says so.

Python imports this module when it starts, if its folder is in `PYTHONPATH`. Which server it is
shows only in its arguments, which it may get later, from a process that forks it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_FOLDER = os.environ.get("STALLS_FOLDER", "")
_TASK = "--task"


def _is_slow() -> bool:
    if _TASK not in sys.argv:
        return False
    task = sys.argv[sys.argv.index(_TASK) + 1]
    return os.path.exists(os.path.join(_FOLDER, f"slow-{task}"))


def _slow_down() -> None:
    sync = os.fdatasync

    def fdatasync(fd: Any) -> None:
        while _is_slow():
            time.sleep(0.05)
        sync(fd)

    os.fdatasync = fdatasync


if _FOLDER:
    _slow_down()

"""Makes the disk of one parameter server slow while there is a file that says so.

Python imports this module when it starts, if its folder is in `PYTHONPATH`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_FOLDER = os.environ.get("STALLS_FOLDER", "")


def _slow_down(task: str) -> None:
    sync, slow = os.fdatasync, os.path.join(_FOLDER, f"slow-{task}")

    def fdatasync(fd: Any) -> None:
        while os.path.exists(slow):
            time.sleep(0.05)
        sync(fd)

    os.fdatasync = fdatasync


if _FOLDER and "stratagem_psserver" in sys.orig_argv:
    _slow_down(sys.orig_argv[sys.orig_argv.index("--task") + 1])

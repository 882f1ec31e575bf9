"""What figures were measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

_MODEL = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)


def machine() -> dict[str, object]:
    """What will be measured on, and how busy it is before."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    found = _MODEL.search(Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()

"""What figures were measured on."""

from __future__ import annotations

import os
import platform

import torch


def machine() -> dict[str, object]:
    """What the figures were measured on, and how busy it was."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }

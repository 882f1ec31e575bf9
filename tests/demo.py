"""What examples/movielens.py prints."""

from __future__ import annotations

import re

DEMO_RMSE = 0.911
"""The median of three seeds under `stratagem run`."""

CLOSE = 0.005
"""What is within this of it has trained as well."""


def demo_error(output: str) -> float:
    """The error on held-out ratings that was printed last."""
    return float(re.findall(r"test RMSE ([\d.]+)", output)[-1])

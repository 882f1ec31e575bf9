"""A Ray that runs on this machine for all tests of the folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SLOTS = 8


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """The library, connected to a Ray with room for eight tasks."""
    ray = pytest.importorskip("ray", reason="Ray is not installed; make ray-test")
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    ray.init(
        num_cpus=_SLOTS,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield ray
    ray.shutdown()

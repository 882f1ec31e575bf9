"""Several logical devices on the one CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem import config


@pytest.fixture
def four_cpus() -> Iterator[None]:
    """`CPU:0` to `CPU:3`."""
    config.set_logical_cpus(4)
    yield
    config.set_logical_cpus(1)

"""The memory that a server may take."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from stratagem_proto.memory import half_of_memory, loading, most_of_memory

MACHINE = half_of_memory([])


@pytest.mark.parametrize(
    "limit, half", [("1000000\n", 500000), ("max\n", MACHINE), (f"{1 << 62}", MACHINE)]
)
def test_it_is_that_of_the_container_if_that_is_less(tmp_path: Path, limit: str, half: int) -> None:
    file = tmp_path / "memory.max"
    file.write_text(limit)
    assert half_of_memory([tmp_path / "none", file]) == half
    assert most_of_memory([file]) == 2 * half * 4 // 5


def test_what_is_loaded_is_exempt_from_garbage_collection() -> None:
    before = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
            modules: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(modules)
    finally:
        gc.unfreeze()

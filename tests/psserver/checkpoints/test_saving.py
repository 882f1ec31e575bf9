"""How many checkpoints a server writes at a time, and which it remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.checkpoints import MAX_SAVES, Saves
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState

CUTS = [bytes([number]) * 16 for number in range(MAX_SAVES + 1)]


@pytest.fixture
def saves() -> Saves:
    """Those of a server with one variable."""
    state, value = ServerState(ServerSettings()), torch.ones(2)
    spec = VariableSpec(name="v", tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
    state.store.create([spec], [value])
    return Saves(state)


def begin(saves: Saves, root: Path, cut: bytes) -> None:
    folder = root / cut.hex()
    folder.mkdir()
    saves.begin(cut, str(folder))


def test_as_many_as_are_under_way_are_remembered_and_no_more_begin(
    saves: Saves, tmp_path: Path
) -> None:
    async def check() -> None:
        *first, last = CUTS
        for cut in first:
            begin(saves, tmp_path, cut)
        with pytest.raises(FailedPreconditionError, match="save again when one"):
            begin(saves, tmp_path, last)
        written = [await saves.finish(cut, 60) for cut in first]
        assert all(written)
        (tmp_path / last.hex()).rmdir()
        begin(saves, tmp_path, last)
        assert await saves.finish(last, 60)

    asyncio.run(check())

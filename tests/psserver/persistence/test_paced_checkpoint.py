"""Checkpoints that are read at a pace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratagem_proto.errors import UnavailableError
from stratagem_psserver.persistence.images import PacedCheckpoint, Throttle
from stratagem_storage.checkpoint.folder import open_checkpoint

MIB = 1 << 20


def test_it_reads_the_same_and_rests_after_each_mebibyte(tmp_path: Path) -> None:
    value = torch.arange(5 * MIB // 8).float()
    save_file({"w": value}, tmp_path / "w.safetensors")
    read: list[int] = []

    def note(nbytes: int) -> float:
        read.append(nbytes)
        return 0.0

    checkpoint = open_checkpoint(tmp_path / "w.safetensors")
    paced = PacedCheckpoint(checkpoint.opened, checkpoint.index, throttle=Throttle(note))
    assert torch.equal(paced.tensor(paced.index.tensors["w"]), value)
    assert read == [MIB, MIB, MIB // 2]


def test_who_hurries_does_not_rest() -> None:
    Throttle(lambda _: 1e6, hurries=lambda: True).rest(MIB)


def test_nothing_more_is_read_once_it_is_not_needed() -> None:
    rests = Throttle(lambda _: 0.0)
    rests.rest(MIB)
    rests.end()
    with pytest.raises(UnavailableError, match="not needed"):
        rests.rest(MIB)

"""Checkpoints whose files were put there by somebody else."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratagem_proto.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem_proto.protocol import first_of_another_run
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import load, load_from, model, save
from tests.hostile_checkpoints import (
    ALTERATIONS,
    DAMAGES,
    SPECIAL_FILES,
    Content,
    altered,
    lying_size,
    saved,
)

MIB = 1 << 20


@pytest.mark.parametrize(("change", "why"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_an_index_that_cannot_be_true_is_refused(
    change: Callable[[Content], object], why: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run")
    assert load_from(tmp_path / "run")
    altered(folder, change)
    for path in (tmp_path / "run", folder):
        with pytest.raises(DataLossError, match=why):
            open_checkpoint(path)


@pytest.mark.parametrize("special", SPECIAL_FILES.values(), ids=SPECIAL_FILES)
def test_what_is_no_file_of_the_folder_is_not_opened(
    special: Callable[[Path], None], tmp_path: Path
) -> None:
    special(saved(tmp_path / "run"))
    with pytest.raises(DataLossError, match="links and other special files are not followed"):
        load_from(tmp_path / "run")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(saved(tmp_path / "run"))
    with pytest.raises(DataLossError):
        load_from(tmp_path / "run")


def test_no_memory_is_taken_for_what_a_file_is_said_to_have(tmp_path: Path) -> None:
    lying_size(saved(tmp_path / "run"))
    checkpoint = open_checkpoint(tmp_path / "run")
    with pytest.raises(DataLossError, match=r"has \d+ bytes where .* says 2199023255552"):
        load(checkpoint)


def test_an_index_without_end_is_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    os.truncate(folder / "index.json", 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(DataLossError, match="is larger than 268435456 bytes"):
            open_checkpoint(folder)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["..", "../run/checkpoint-1", "/etc", "checkpoint-1/."])
def test_the_latest_checkpoint_is_one_of_its_folder(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "run")
    latest = tmp_path / "run" / "latest"
    latest.write_text(latest.read_text().replace("checkpoint-1", name))
    with pytest.raises(DataLossError, match="does not name an intact checkpoint"):
        open_checkpoint(tmp_path / "run")


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")

    def change(content: Content) -> None:
        (part,) = (one for one in content["tensors"] if one["spec"]["name"] == "parts/part_1")
        part["spec"]["tensor"]["dtype"] = "DATA_TYPE_INT8"

    altered(folder, change)
    with pytest.raises(DataLossError, match="parts of 'parts' that do not belong together"):
        load_from(folder)


def test_a_path_that_somebody_named_may_be_a_link(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    (tmp_path / "best").symlink_to(folder)
    (tmp_path / "all").symlink_to(tmp_path / "run")
    expected = load_from(folder).keys()
    assert load_from(tmp_path / "best").keys() == load_from(tmp_path / "all").keys() == expected
    save_file({"w": torch.ones(2)}, tmp_path / "blob")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert load_from(tmp_path / "model.safetensors").keys() == {"w"}


def test_what_is_no_path_to_a_checkpoint_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        open_checkpoint(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match="is no path"):
        open_checkpoint("run\0")


def test_a_checkpoint_that_is_open_is_read_from_its_own_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    checkpoint = open_checkpoint(folder)
    folder.rename(tmp_path / "moved")
    other = torch.zeros(2)
    save(tmp_path / "other", [[(model("w", other), other)]], keep=1).rename(folder)
    assert load(checkpoint)["w"].tolist() == [1.0, 1.0]


HEADERS = {
    "offsets that lie": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,1152921504606846976]}}',
    "2^60 elements": (
        b'{"w":{"dtype":"F32","shape":[1152921504606846976],'
        b'"data_offsets":[0,4611686018427387904]}}'
    ),
    "a place in the header": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}',
    "overlapping tensors": (
        b'{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    ),
    "no offsets": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[]}}',
    "no tensors": b"[]",
    "nesting": b"[" * 100_000,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_safetensors_file_whose_header_lies_is_refused(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(DataLossError, match=r"model\.safetensors"):
        open_checkpoint(path)
    path.write_bytes((1 << 60).to_bytes(8, "little") + header)
    with pytest.raises(DataLossError, match="is not a checkpoint, or is damaged"):
        open_checkpoint(path)
    save_file({"w": torch.ones(2)}, path)
    assert load_file(path).keys() == load_from(path).keys()


def test_versions_of_every_run_of_a_server_are_sound(tmp_path: Path) -> None:
    last = first_of_another_run(lambda size: b"\xfe" * size)
    folder = saved(tmp_path)
    altered(folder, lambda content: _with_version(content, last))
    assert open_checkpoint(tmp_path).index.tensors["w"].version == last
    altered(folder, lambda content: _with_version(content, 1 << 64))
    with pytest.raises(DataLossError, match="has version"):
        open_checkpoint(tmp_path)


def _with_version(content: dict[str, Any], version: int) -> None:
    for tensor in content["tensors"]:
        tensor["version"] = version

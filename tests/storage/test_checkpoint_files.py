"""Checkpoints of a cluster as files."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratagem_proto.division import PartRows
from stratagem_proto.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    RowIndexError,
    StratagemError,
)
from stratagem_storage.checkpoint.entries import BLOCK_BYTES
from stratagem_storage.checkpoint.folder import open_checkpoint
from stratagem_storage.checkpoint.parts import DTYPE_NAMES, Content
from stratagem_storage.checkpoint.wholes import RUN_BYTES, wholes_of
from tests.checkpoints import (
    are_equal,
    load,
    load_from,
    model,
    save,
    sharded,
    stored_table,
)

pytestmark = pytest.mark.first

USERS = [4, 0, 1]
IS_USER = torch.tensor([True, True, False, False, True]).unsqueeze(1)


def two_servers(value: float, is_interleaved: bool = False) -> list[list[Any]]:
    table = torch.arange(10.0).reshape(5, 2) + value
    bias = torch.full((3,), value)
    first, second = sharded("table", table, 2, is_interleaved)
    some, others = stored_table("users", table, USERS, 2, is_interleaved)
    return [[*first, *some], [*second, (model("bias", bias), bias), *others]]


def expected(value: float) -> dict[str, torch.Tensor]:
    table = torch.arange(10.0).reshape(5, 2) + value
    return {
        "table": table,
        "table/Adam/exp_avg": 2 * table,
        "table/Adam/step": torch.tensor(3.0),
        "bias": torch.full((3,), value),
        "users": torch.where(IS_USER, table, 0.5),
        "users/Adagrad/sum": torch.where(IS_USER, 2 * table, -1.0),
    }


def test_what_is_saved_in_shards_is_read_as_a_whole(tmp_path: Path) -> None:
    save(tmp_path / "run", two_servers(1.0), keep=1)
    assert are_equal(load_from(tmp_path / "run"), expected(1.0))


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_what_shards_took_in_turn_is_read_as_a_whole(dtype: torch.dtype, tmp_path: Path) -> None:
    save(tmp_path / "run", two_servers(1.0, is_interleaved=True), keep=1)
    assert are_equal(load_from(tmp_path / "run"), expected(1.0))
    whole = torch.arange(14).reshape(7, 2).to(dtype)
    held: list[list[Any]] = []
    for number in range(3):
        part = PartRows.of_shard(7, number, 3, True)
        spec = model(f"v/part_{number}", rows := part.select(whole).clone())
        spec.partition.CopyFrom(part.partition(whole.shape))
        held.append([(spec, rows)])
    save(tmp_path / "typed", held, keep=1)
    read = load_from(tmp_path / "typed")["v"]
    assert torch.equal(read.view(torch.uint8), whole.view(torch.uint8))


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("name", ["table", "users"])
def test_parts_of_any_division_are_read_of_those_of_another(
    name: str, is_interleaved: bool, tmp_path: Path
) -> None:
    save(tmp_path, two_servers(1.0, is_interleaved), keep=1)
    checkpoint = open_checkpoint(tmp_path)
    whole = wholes_of(checkpoint.index)[name]
    for shards in range(1, 6):
        for number in range(shards):
            for wanted in (False, True):
                part = PartRows.of_shard(5, number, shards, wanted)
                read = whole.read_part(checkpoint, part)
                assert torch.equal(read, part.select(expected(1.0)[name]))


def test_runs_of_rows_that_others_lie_between_are_read_some_at_a_time(tmp_path: Path) -> None:
    rows = 3 * RUN_BYTES // 400
    whole = torch.arange(100.0 * rows).reshape(rows, 100)
    save(tmp_path, sharded("v", whole, 2), keep=1)
    checkpoint = open_checkpoint(tmp_path)
    part = PartRows.of_shard(rows, 1, 3, True)
    read = wholes_of(checkpoint.index)["v"].read_part(checkpoint, part)
    assert torch.equal(read, whole[1::3])


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_parts_are_safetensors_files(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(6).reshape(2, 3).to(dtype)
    contents = {"v": values, "none": values[:0], "scalar": values[1, 1]}
    held = [(model(name, value), value) for name, value in contents.items()]
    folder = save(tmp_path / "run", [held], keep=1)
    assert are_equal(load_file(folder / "part-0.safetensors"), contents)
    assert are_equal(load_from(folder), contents)


@pytest.mark.parametrize("size", [BLOCK_BYTES // 4 - 40, BLOCK_BYTES, 1_000_003])
def test_files_of_several_blocks_are_read_as_they_were(size: int, tmp_path: Path) -> None:
    contents = {"a": torch.randn(size), "b": torch.randn(size // 2, 2)}
    held = [(model(name, value), value) for name, value in contents.items()]
    save(tmp_path / "run", [held], keep=1)
    assert are_equal(load_from(tmp_path / "run"), contents)


def test_any_safetensors_file_is_a_checkpoint(tmp_path: Path) -> None:
    contents = {"w": torch.randn(4), "w/Adam/exp_avg": torch.randn(4)}
    save_file(contents, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    assert are_equal(load(checkpoint), contents)
    assert wholes_of(checkpoint.index)["w/Adam/exp_avg"].slot_of == "w"


def test_a_dtype_without_a_name_in_safetensors_is_refused(tmp_path: Path) -> None:
    value = torch.zeros(2, dtype=torch.complex128)
    with pytest.raises(InvalidArgumentError, match=r"complex128, the dtype of variable 'v'"):
        save(tmp_path / "run", [[(model("v", value), value)]], keep=1)


def test_only_the_files_of_wanted_rows_are_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", two_servers(1.0), keep=1)
    checkpoint = open_checkpoint(folder)
    (folder / "part-1.safetensors").unlink()
    table = wholes_of(checkpoint.index)["table"]
    rows = table.read_rows(checkpoint, 1, 3)
    assert torch.equal(rows, expected(1.0)["table"][1:3])
    with pytest.raises(DataLossError, match=r"part-1.*missing.*folder that all tasks"):
        table.read_rows(checkpoint, 2, 4)


def test_the_last_checkpoints_are_kept_and_any_can_be_named(tmp_path: Path) -> None:
    folders = [save(tmp_path, two_servers(float(n)), keep=2) for n in range(4)]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"latest", "checkpoint-3", "checkpoint-4"}
    assert are_equal(load_from(tmp_path), expected(3.0))
    assert are_equal(load_from(folders[2]), expected(2.0))


def test_where_there_is_no_checkpoint_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        open_checkpoint(tmp_path)
    with pytest.raises(NotFoundError, match="make it first"):
        save(tmp_path / "none" / "run", [], keep=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="is a file"):
        save(tmp_path / "file", [], keep=1)


def test_rows_of_a_table_that_were_not_stored_are_filled_in(tmp_path: Path) -> None:
    folder = save(tmp_path, two_servers(1.0), keep=1)
    checkpoint = open_checkpoint(folder)
    users = wholes_of(checkpoint.index)["users"]
    assert torch.equal(users.read_rows(checkpoint, 1, 4), expected(1.0)["users"][1:4])
    with pytest.raises(RowIndexError, match="has 5 rows"):
        users.read_rows(checkpoint, 4, 6)


def test_a_table_that_is_too_large_to_be_read_whole_is_not(tmp_path: Path) -> None:
    (((content, rows), *rest),) = stored_table("users", torch.ones(2, 1), [1], 1)
    assert isinstance(content, Content)
    content.spec.tensor.shape[0] = content.spec.partition.full_shape[0] = 2**40
    save(tmp_path, [[(content, rows), *rest]], keep=1)
    checkpoint = open_checkpoint(tmp_path)
    users = wholes_of(checkpoint.index)["users"]
    with pytest.raises(InvalidArgumentError, match="export --stored-rows"):
        users.read(checkpoint)
    assert users.read_rows(checkpoint, 0, 2).tolist() == [[0.5], [1.0]]


def test_an_index_without_tables_has_the_format_before_them(tmp_path: Path) -> None:
    held = [(model("v", torch.ones(2)), torch.ones(2))]
    in_turn = sharded("v", torch.ones(4, 1), 2, is_interleaved=True)[0]
    for root, expected in ((held, 1), (two_servers(1.0)[0], 2), (in_turn, 4)):
        folder = save(tmp_path, [root], keep=1)
        document = json.loads((folder / "index.json").read_bytes())
        assert document["content"]["format"] == expected


def test_missing_shards_are_noticed(tmp_path: Path) -> None:
    first, second, third = sharded("t", torch.arange(6.0).reshape(3, 2), 3)
    save(tmp_path, [first, third], keep=1)
    with pytest.raises(DataLossError, match="all rows of 't'"):
        load_from(tmp_path)
    save(tmp_path, [first, second], keep=1)
    with pytest.raises(DataLossError, match="all rows of 't'"):
        load_from(tmp_path)
    first, second, third = sharded("t", torch.arange(8.0).reshape(4, 2), 3, is_interleaved=True)
    save(tmp_path, [first, third], keep=1)
    with pytest.raises(DataLossError, match="every 3 rows from row 0, every 3 rows from row 2"):
        load_from(tmp_path)
    save(tmp_path, stored_table("t", torch.ones(4, 1), [1], 2)[:1], keep=1)
    with pytest.raises(DataLossError, match="all parts of table 't'"):
        load_from(tmp_path)


@pytest.mark.parametrize("file", ["latest", "index.json", "part-0", "part-1"])
def test_a_flipped_bit_is_noticed_wherever_it_is(file: str, tmp_path: Path) -> None:
    save(tmp_path, two_servers(1.0), keep=1)
    (path,) = (path for path in tmp_path.rglob("*") if path.name.startswith(file))
    data = path.read_bytes()
    # One checksum is of all bytes, and to look at each of them took half a minute.
    for number in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[number] ^= 1 << number % 8
        path.write_bytes(damaged)
        with pytest.raises(DataLossError):
            open_checkpoint(tmp_path).verify()
    path.write_bytes(data)
    open_checkpoint(tmp_path).verify()


def test_a_damaged_value_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path, two_servers(1.0), keep=1)
    checkpoint = open_checkpoint(folder)
    part = folder / "part-1.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    with pytest.raises(
        DataLossError, match=r"part-1\.safetensors' is damaged.*variable 'table/part_1'"
    ):
        load(checkpoint)
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DataLossError, match="bytes where the checkpoint's index says"):
        load(checkpoint)


class PowerCut(BaseException):
    """The machine is off."""


class Disk:
    """Lets so many bytes and operations reach the disk, then none."""

    def __init__(self, left: int) -> None:
        self.left = left

    def write(self, write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def limited(descriptor: int, data: Any) -> int:
            size = len(data)
            if size > self.left:
                write(descriptor, data[: self.left])
            self.spend(size)
            return write(descriptor, data)

        return limited

    def operation(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.spend(STRIDE)
            return call(*args, **kwargs)

        return limited

    def spend(self, cost: int) -> None:
        if cost > self.left:
            self.left = 0
            raise PowerCut
        self.left -= cost


# An operation counts for as many bytes as there are from one cut to the next, so that there is one
# before each operation.
STRIDE = 13
OPERATIONS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")


def power_cuts(monkeypatch: pytest.MonkeyPatch, every: int) -> Iterator[Disk]:
    """One disk for each moment, or for every few, at which the machine could stop."""
    left = 0
    while True:
        with monkeypatch.context() as patch:
            disk = Disk(left)
            patch.setattr(os, "write", disk.write(os.write))
            patch.setattr(os, "fsync", lambda descriptor: None)  # it takes its time
            for name in OPERATIONS:
                patch.setattr(os, name, disk.operation(getattr(os, name)))
            yield disk
        if disk.left:
            return
        left += STRIDE * every


@pytest.mark.parametrize(
    "every", [7, pytest.param(1, marks=pytest.mark.full("every seventh moment finds most faults"))]
)
def test_a_crash_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """At every few bytes that are written, and before each operation on the disk."""
    cuts, outcomes = 0, set()
    for disk in power_cuts(monkeypatch, every):
        root = tmp_path / str(cuts)
        left, disk.left = disk.left, 1 << 40
        save(root, two_servers(1.0), keep=1)
        disk.left = left
        try:
            save(root, two_servers(2.0), keep=1)
        except PowerCut:
            disk.left = 1 << 40
            outcomes.add(_whole(root))
            save(root, two_servers(3.0), keep=1)
            assert _whole(root) == 3.0
            assert len(list(root.iterdir())) == 2
            disk.left = 0
        cuts += 1
    assert outcomes == {1.0, 2.0}
    assert cuts > 300 // every


def _whole(root: Path) -> float:
    """Which checkpoint there is; all of it is read."""
    checkpoint = open_checkpoint(root)
    checkpoint.verify()
    found = load(checkpoint)
    value = float(found["bias"][0])
    assert are_equal(found, expected(value))
    return value


def test_an_index_of_a_later_release_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, two_servers(1.0), keep=1)
    document = json.loads((folder / "index.json").read_bytes())
    document["content"]["format"] = 99

    def canonical(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    document["crc32"] = zlib.crc32(canonical(document["content"]))
    (folder / "index.json").write_bytes(canonical(document))
    with pytest.raises(StratagemError, match="has format 99 of checkpoints, by stratagem"):
        open_checkpoint(folder)

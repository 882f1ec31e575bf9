"""Checkpoints that have only the rows which differ from those of an earlier one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem_proto.errors import DataLossError
from stratagem_storage.checkpoint.folder import (
    Checkpoint,
    NewCheckpoint,
    open_checkpoint,
    part_name,
)
from stratagem_storage.checkpoint.index import Base, Index
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.stores.places import AnyPlace
from tests.checkpoints import load_from, model
from tests.full import examples

NAME = part_name(0)


def save(
    root: AnyPlace, value: torch.Tensor, rows: Sequence[int] | None = None, keep: int = 9
) -> Checkpoint:
    """Save a value, or those of its rows that differ from the latest checkpoint."""
    new, content, values, base = NewCheckpoint(root), Content(model("v", value)), [value], None
    if rows is not None:
        numbers = torch.tensor(rows, dtype=torch.int64)
        content = replace(content, changed=numbers)
        values = [numbers, (value if value.dim() else value.reshape(1))[numbers]]
        base = open_checkpoint(root).as_base
    part = write_part(new.folder, NAME, [content], values)
    return open_checkpoint(new.commit(Index.of_parts([part], base=base), keep))


def differing(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    same = min(len(before), len(after))
    differs = (before[:same] != after[:same]).flatten(1).any(1).nonzero().flatten().tolist()
    return [*differs, *range(same, len(after))]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_bytes_of_it_are_those_of_the_whole(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However the rows have changed, grown more or become fewer, and however often."""
    root, width = tmp_path_factory.mktemp("run"), data.draw(st.integers(1, 5))
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=2, max_size=4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    value = torch.randint(3, (sizes[0], width), dtype=torch.int16, generator=generator)
    save(root, value)
    for size in sizes[1:]:
        after = torch.randint(3, (size, width), dtype=torch.int16, generator=generator)
        after[: len(value) // 2] = value[: len(value) // 2][:size]
        saved = save(root, after, differing(value, after))
        value = after
    assert torch.equal(load_from(root)["v"], value)
    whole, entry = value.numpy().tobytes(), saved.index.tensors["v"]
    start = data.draw(st.integers(0, len(whole)))
    target = memoryview(bytearray(data.draw(st.integers(0, len(whole) - start))))
    if target:
        saved.read(entry, start, target)
    assert bytes(target) == whole[start : start + len(target)]


def test_a_number_is_a_row(tmp_path: Path) -> None:
    save(tmp_path, torch.tensor(1.0))
    save(tmp_path, torch.tensor(2.0), [0])
    assert load_from(tmp_path)["v"].item() == 2
    save(tmp_path, torch.tensor(2.0), [])
    assert load_from(tmp_path)["v"].item() == 2


def test_what_kept_ones_refer_to_is_kept(tmp_path: Path) -> None:
    value = torch.arange(6.0).reshape(3, 2)
    for rows in (None, [0], [1]):
        save(tmp_path, value, rows, keep=1)
    assert torch.equal(load_from(tmp_path)["v"], value)
    assert names(tmp_path) == {"checkpoint-1", "checkpoint-2", "checkpoint-3"}
    save(tmp_path, value, keep=2)
    assert names(tmp_path) == {f"checkpoint-{number}" for number in (1, 2, 3, 4)}
    save(tmp_path, value, keep=2)
    assert names(tmp_path) == {"checkpoint-4", "checkpoint-5"}


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_without_what_it_refers_to_it_is_refused(tmp_path: Path) -> None:
    root, value = tmp_path / "run", torch.arange(6.0).reshape(3, 2)
    save(root, value)
    save(root, value + 1, [1])
    shutil.copytree(root / "checkpoint-2", tmp_path / "copy")
    with pytest.raises(DataLossError, match="checkpoint-1', which is not there"):
        open_checkpoint(tmp_path / "copy")
    shutil.rmtree(root / "checkpoint-1")
    with pytest.raises(DataLossError, match="has to copy both"):
        open_checkpoint(root)


def test_another_checkpoint_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    value = torch.arange(6.0).reshape(3, 2)
    for name in ("run", "other"):
        save(tmp_path / name, value)
    save(tmp_path / "run", value + 1, [1])
    shutil.rmtree(tmp_path / "run" / "checkpoint-1")
    shutil.copytree(tmp_path / "other" / "checkpoint-1", tmp_path / "run" / "checkpoint-1")
    with pytest.raises(DataLossError, match="no longer is"):
        open_checkpoint(tmp_path / "run")


def test_damage_to_what_it_refers_to_is_noticed(tmp_path: Path) -> None:
    value = torch.arange(6.0).reshape(3, 2)
    save(tmp_path, value)
    saved = save(tmp_path, value + 1, [1])
    part = tmp_path / "checkpoint-1" / NAME
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(DataLossError, match=r"checkpoint-1.*damaged"):
        saved.verify()
    with pytest.raises(DataLossError, match="damaged"):
        load_from(tmp_path)


@pytest.mark.parametrize("rows", [[3, 0], [3, 3], [-1, 3], [3, 4], [0, 1, 2]])
def test_rows_that_cannot_be_are_refused(tmp_path: Path, rows: list[int]) -> None:
    """Four rows, the last of which is not in the base."""
    save(tmp_path, torch.zeros(3, 2))
    new, value = NewCheckpoint(tmp_path), torch.ones(4, 2)
    content = Content(model("v", value), changed=torch.tensor(rows))
    part = write_part(new.folder, NAME, [content], [torch.tensor(rows), value[: len(rows)]])
    new.commit(Index.of_parts([part], base=open_checkpoint(tmp_path).as_base), keep=9)
    with pytest.raises(DataLossError, match="does not have the rows"):
        load_from(tmp_path)


@pytest.mark.parametrize(
    "base",
    [
        {"identity": "", "names": []},
        {"identity": "", "names": ["checkpoint-1", "checkpoint-1"]},
        {"identity": "", "names": ["../checkpoint-1"]},
        {"identity": "", "names": ["latest"]},
        {"identity": "", "names": [f"checkpoint-{number}" for number in range(1, 99)]},
    ],
)
def test_what_cannot_be_a_base_is_refused(tmp_path: Path, base: object) -> None:
    save(tmp_path, torch.zeros(3, 2))
    index = save(tmp_path, torch.ones(3, 2), [1]).index
    content = json.loads(index.to_bytes())["content"]
    altered = Index(index.files, index.tensors, base=Base("", tuple(base["names"])))  # type: ignore[index]
    assert content["format"] == 3
    with pytest.raises(DataLossError, match="base"):
        Index.from_bytes(altered.to_bytes(), "index.json")


def test_an_index_without_a_base_has_all_rows(tmp_path: Path) -> None:
    save(tmp_path, torch.zeros(3, 2))
    index = save(tmp_path, torch.ones(3, 2), [1]).index
    with pytest.raises(DataLossError, match="lack rows"):
        Index.from_bytes(replace(index, base=None).to_bytes(), "index.json")


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_all_is_the_same_in_a_store_of_objects(kind: str, request: pytest.FixtureRequest) -> None:
    bucket = "memory://incremental" if kind == "memory" else request.getfixturevalue("bucket")
    value, url = torch.arange(6.0).reshape(3, 2), f"{bucket}/run"
    save(url, value, keep=1)
    for row in (0, 2):
        value = value.clone()
        value[row] += 1
        saved = save(url, value, [row], keep=1)
        assert torch.equal(load_from(url)["v"], value)
    assert len(saved.index.bases) == 2
    save(url, value, keep=1)
    system, path = fsspec.url_to_fs(url)
    (kept,) = {name.removeprefix(f"{path}/").split("/")[0] for name in system.find(path)}
    assert kept.startswith("checkpoint-4-")
    MemoryFileSystem.store.clear()

"""Checkpoints in stores of objects: in the memory of this process, and on an S3 server."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save_file

from stratagem_proto.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
)
from stratagem_storage.checkpoint.folder import (
    NewCheckpoint,
    open_checkpoint,
    part_name,
)
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.checkpoint.parts import Content as Described
from stratagem_storage.checkpoint.parts import write_part
from stratagem_storage.checkpoint.policy import CheckpointPolicy
from stratagem_storage.stores import object_calls
from stratagem_storage.stores.object_calls import ObjectCalls
from stratagem_storage.stores.places import StoreUrl, place_of
from tests.checkpoints import are_equal, load, load_from, model, save_at
from tests.hostile_checkpoints import ALTERATIONS, DAMAGES, Content, altered, saved


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    """A place of its own in each kind of store."""
    name = secrets.token_hex(4)
    if request.param == "memory":
        return f"memory://{name}"
    return f"{request.getfixturevalue('bucket')}/{name}"


@pytest.fixture
def memory() -> Iterator[str]:
    """A place in the memory of this process."""
    yield f"memory://{secrets.token_hex(4)}"
    MemoryFileSystem.store.clear()


def held(value: float, size: int = 5) -> list[list[Any]]:
    """What two servers hold."""
    tensors = {name: torch.full((size,), value) for name in ("a", "b")}
    return [[(model(name, tensor), tensor)] for name, tensor in tensors.items()]


def objects(url: str) -> list[str]:
    """The names of all objects below a place."""
    system, path = fsspec.url_to_fs(url)
    return [name.removeprefix(f"{path}/") for name in system.find(path)]


def value_at(url: str) -> float:
    """Which checkpoint is the latest; all of it is read."""
    checkpoint = open_checkpoint(url)
    checkpoint.verify()
    (value,) = {float(one) for tensor in load(checkpoint).values() for one in tensor}
    return value


def test_what_is_saved_is_read_and_the_last_ones_are_kept(url: str) -> None:
    places = [save_at(url, held(float(number)), keep=2) for number in range(4)]
    assert value_at(url) == 3.0
    assert [value_at(str(place)) for place in places[2:]] == [2.0, 3.0]
    assert {name.split("/")[0] for name in objects(url)} == {place.name for place in places[2:]}
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        open_checkpoint(places[0])


def test_parts_of_several_pieces_and_ranges_of_them_are_read_as_they_were(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_calls, "_PIECE_BYTES", 5 << 20)
    value = torch.randn(5_000_003)
    small = [(model(f"v{number}", value[number]), value[number]) for number in range(20)]
    save_at(url, [[(model("large", value), value), *small]], keep=1)
    found = load_from(url)
    assert torch.equal(found["large"], value)
    assert all(found[f"v{number}"] == value[number] for number in range(20))


def test_a_safetensors_file_is_a_checkpoint(url: str, tmp_path: Path) -> None:
    contents = {"w": torch.randn(4)}
    save_file(contents, tmp_path / "model.safetensors")
    fsspec.url_to_fs(url)[0].put_file(str(tmp_path / "model.safetensors"), f"{url}/model")
    assert are_equal(load_from(f"{url}/model"), contents)


def test_the_checkpoints_of_a_folder_can_be_copied_to_a_store(url: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    copy(folder, url)
    assert are_equal(load_from(url), load_from(folder))
    save_at(url, held(2.0), keep=1)
    assert value_at(url) == 2.0


def copy(folder: Path, url: str) -> None:
    """Put a checkpoint of a folder where one of a store would be."""
    system = fsspec.url_to_fs(url)[0]
    for path in folder.iterdir():
        system.pipe_file(f"{url}/{folder.name}/{path.name}", path.read_bytes())


@pytest.mark.parametrize(("change", "why"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_an_index_that_cannot_be_true_is_refused(
    change: Callable[[Content], object], why: str, memory: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run")
    altered(folder, change)
    copy(folder, memory)
    with pytest.raises(DataLossError, match=why):
        open_checkpoint(memory)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_refused(
    damage: Callable[[Path], None], memory: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run")
    damage(folder)
    copy(folder, memory)
    with pytest.raises(DataLossError):
        load_from(memory)


def test_what_is_unsigned_is_refused_with_a_key(memory: str) -> None:
    save_at(memory, held(1.0), keep=1)
    with pytest.raises(PermissionDeniedError, match="is not signed"):
        open_checkpoint(memory, CheckpointPolicy(key="key"))


def test_below_a_root_is_not_beside_it_nor_in_another_store(memory: str) -> None:
    save_at(f"{memory}/root/run", held(1.0), keep=1)
    policy = CheckpointPolicy(place_of(f"{memory}/root"))
    assert load(open_checkpoint(f"{memory}/root/run", policy))
    for path in (memory, f"{memory}/root-2", f"{memory.replace('memory', 's3')}/root/run", "/tmp"):
        with pytest.raises(PermissionDeniedError, match="checkpoint-root"):
            open_checkpoint(path, policy)


class PowerCut(BaseException):
    """The machine is off."""


class Network:
    """Lets so many calls reach a store, then none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 40
        call = ObjectCalls._call

        def limited(calls: ObjectCalls, url: StoreUrl, verb: str, work: Any) -> Any:
            if not self.left:
                raise PowerCut
            self.left -= 1
            return call(calls, url, verb, work)

        monkeypatch.setattr(ObjectCalls, "_call", limited)


def test_a_crash_before_any_call_leaves_a_whole_checkpoint(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, outcomes, calls = Network(monkeypatch), set(), 0
    while True:
        root = f"{memory}/{calls}"
        save_at(root, held(1.0), keep=1)
        network.left = calls
        try:
            save_at(root, held(2.0), keep=1)
            break
        except PowerCut:
            network.left = 1 << 40
        outcomes.add(value_at(root))
        save_at(root, held(3.0), keep=1)
        assert value_at(root) == 3.0
        # Of the others there is at most what keeps their index away.
        (last,) = {name.split("/")[0] for name in objects(root) if name.endswith("safetensors")}
        others = [name for name in objects(root) if not name.startswith(last)]
        assert all(name.endswith("index.json") for name in others)
        calls += 1
    assert outcomes == {1.0, 2.0}
    assert calls > 15


def begun(url: str) -> tuple[NewCheckpoint, Index]:
    """A checkpoint with all but its index."""
    new, value = NewCheckpoint(url), torch.ones(3)
    part = write_part(new.folder, part_name(0), [Described(model("a", value))], [value])
    return new, Index.of_parts([part])


def test_who_was_held_up_cannot_end_what_another_program_has_removed(url: str) -> None:
    new, index = begun(url)
    save_at(url, held(2.0), keep=1)
    with pytest.raises(AbortedError, match="another program has saved"):
        new.commit(index, keep=1)
    assert value_at(url) == 2.0
    assert f"{new.folder.path.name}/{part_name(0)}" not in objects(url)


def test_a_file_that_is_there_is_not_replaced(url: str) -> None:
    new, _ = begun(url)
    with pytest.raises(FileExistsError):
        new.folder.write(part_name(0), [memoryview(b"other")])
    assert new.folder.read(part_name(0), 1000) != b"other"


def failing(monkeypatch: pytest.MonkeyPatch, times: int, acts: bool) -> Callable[[], None]:
    """Let puts of an index have no answer so often, whether or not they have an effect."""
    pipe, left = MemoryFileSystem.pipe_file, times

    def lost(system: Any, path: str, value: bytes, **options: Any) -> None:
        nonlocal left
        is_lost = path.endswith("index.json") and left > 0
        if acts or not is_lost:
            pipe(system, path, value, **options)
        if is_lost:
            left -= 1
            raise ConnectionResetError("gone")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lost)
    return lambda: monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe)


@pytest.mark.parametrize("acts", [False, True])
def test_an_index_whose_answer_is_lost_is_put_again(
    acts: bool, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, index = begun(memory)
    failing(monkeypatch, 1, acts)
    new.commit(index, keep=1)
    assert value_at(memory) == 1.0


def test_a_save_that_failed_at_its_end_cannot_appear_later(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_at(memory, held(5.0), keep=1)
    new, index = begun(memory)
    failing(monkeypatch, 3, acts=False)
    with pytest.raises(StoreError, match=r"did not write .*index\.json.*gone"):
        new.commit(index, keep=1)
    new.abandon()
    with pytest.raises(AbortedError):
        new.commit(index, keep=1)
    assert value_at(memory) == 5.0


def test_a_save_that_succeeded_without_an_answer_is_not_removed(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, index = begun(memory)
    mend = failing(monkeypatch, 9, acts=True)
    monkeypatch.setattr(ObjectCalls, "size", _no_answer)
    with pytest.raises(StoreError):
        new.commit(index, keep=1)
    monkeypatch.undo()
    mend()
    new.abandon()
    assert value_at(memory) == 1.0


def _no_answer(calls: ObjectCalls, url: StoreUrl) -> int:
    raise StoreError("gone")


def test_a_store_that_does_not_look_at_conditions_is_refused(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = MemoryFileSystem.pipe_file

    def blind(system: Any, path: str, value: bytes, mode: str) -> None:
        pipe(system, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", blind)
    with pytest.raises(FailedPreconditionError, match="If-None-Match"):
        NewCheckpoint(memory)
    assert objects(memory) == []


def test_an_object_is_no_folder_of_checkpoints(url: str) -> None:
    fsspec.url_to_fs(url)[0].pipe_file(f"{url}/file", b"x")
    with pytest.raises(InvalidArgumentError, match="is an object"):
        NewCheckpoint(f"{url}/file")


def test_a_call_without_an_answer_ends_in_time(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    monkeypatch.setattr(object_calls, "SECONDS", 0.2)
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, **__: ends.wait())
    with pytest.raises(StoreError, match=rf"did not read '{memory}.* in 0\.2 s"):
        open_checkpoint(memory)
    ends.set()


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (PermissionError("403"), PermissionDeniedError, "AWS_ACCESS_KEY_ID"),
        (ConnectionError("no route"), StoreError, "no route"),
        (TimeoutError("slow"), StoreError, "TimeoutError: slow"),
        (ImportError("s3fs"), FailedPreconditionError, r"pip install 'stratagem\[s3\]'"),
    ],
)
def test_errors_of_stores_name_the_url_and_what_to_do(
    error: Exception, kind: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(fsspec, "filesystem", fail)
    object_calls.system_of.cache_clear()
    with pytest.raises(kind, match=rf"s3://bucket/run.*{why}"):
        open_checkpoint("s3://bucket/run")


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(NotFoundError, match=r"no bucket 'none'"):
        NewCheckpoint("s3://none/run")
    with pytest.raises(NotFoundError, match=r"there is no checkpoint 's3://none/run'"):
        open_checkpoint("s3://none/run")

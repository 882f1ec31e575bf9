"""Readers of a folder of checkpoints have what is saved there, version after version."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stratagem import (
    DataLossError,
    DeadlineExceededError,
    DifferentTrainingError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    Reader,
    RowIndexError,
    StaleVersionError,
    VariableNotFoundError,
)
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.stores.local import latest_of
from tests.checkpoints import model as model_spec
from tests.checkpoints import save_at
from tests.client.clusters import running
from tests.reader.followed import ROWS, WIDTH, Model, Training, assert_equal_to
from tests.waiting import eventually

_SECONDS = 30.0


def saved(training: Training, root: Path, reader: Reader, incremental: bool = True) -> None:
    """Saves, and waits until the reader has it."""
    before = reader.version
    training.strategy.save(root, incremental=incremental, keep=2)
    reader.wait_for(before + 1, _SECONDS)


def test_a_replica_equals_its_source_after_each_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With evictions, and a restoration of an earlier checkpoint in between."""
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "followed")
        strategy.save(tmp_path / "kept")
        with Reader(tmp_path / "followed", timeout=_SECONDS) as reader:
            versions = [reader.version]
            for number in range(7):
                assert_equal_to(reader, tmp_path / "followed")
                if number == 3:
                    strategy.restore(tmp_path / "kept")
                training.train(steps=2)
                saved(training, tmp_path / "followed", reader, incremental=number != 5)
                versions.append(reader.version)
            assert_equal_to(reader, tmp_path / "followed")
            assert versions == sorted({*versions})
    assert "is read whole" not in caplog.text


def test_it_goes_on_where_another_number_of_servers_does(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "followed")
    with Reader(tmp_path / "followed", timeout=_SECONDS) as reader:
        model = reader.module(Model)
        with running(3) as cluster, cluster.strategy() as strategy:
            again = Training(strategy)
            strategy.restore(tmp_path / "followed")
            again.train()
            # Another training: it has begun anew on other servers.
            strategy.save(tmp_path / "followed", incremental=True)
            eventually(lambda: reader.source_error is not None, _SECONDS)
            assert isinstance(reader.source_error, DifferentTrainingError)
            with pytest.raises(FailedPreconditionError, match=r"make another stratagem\.Reader"):
                raise reader.source_error
            with Reader(tmp_path / "followed", timeout=_SECONDS) as other:
                assert_equal_to(other, tmp_path / "followed")
                rows, keys = again.batch()
                assert torch.equal(other.module(Model)(rows, keys), again.answers(rows, keys))
        model(rows, keys)


def test_a_followed_module_answers_as_the_trained_one(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "run")
        with Reader(tmp_path / "run", timeout=_SECONDS) as reader:
            model = reader.module(Model)
            assert not model.training and not any(p.requires_grad for p in model.parameters())
            assert model.first.weight is model.second.weight
            for _ in range(3):
                # Most of these keys have no row: what they begin with is made here.
                rows, keys = training.batch(60)
                assert torch.equal(model(rows, keys), training.answers(rows, keys))
                training.train()
                saved(training, tmp_path / "run", reader)
            half = reader.module(Model)
            half.norm.half()
            training.train()
            saved(training, tmp_path / "run", reader)
            # What has memory of its own follows, too.
            with reader.pin():
                half.norm(torch.zeros(2, WIDTH, dtype=torch.float16))
                assert torch.equal(half.norm.weight, reader.value("norm.weight").half())


def test_what_a_program_writes_to_a_followed_module_is_noticed_and_undone(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "run")
        with Reader(tmp_path / "run", timeout=_SECONDS) as reader:
            model, moved = reader.module(Model), reader.module(Model)
            moved.first.double()
            statistics = dict(model.norm.named_buffers())["running_mean"]
            rows, keys = training.batch()
            writes: list[Callable[[], object]] = [
                lambda: model.first.weight.add_(1),
                lambda: model.load_state_dict({"second.bias": torch.ones(WIDTH)}, strict=False),
                lambda: moved.first.bias.zero_(),
                lambda: statistics.fill_(3),
            ]
            for write in writes:
                before = moved.first.bias.clone()
                with torch.no_grad():
                    write()
                with pytest.raises(FailedPreconditionError, match="this program has written to it"):
                    model(rows, keys)
                eventually(lambda: reader.replica.is_intact, _SECONDS)
                assert torch.equal(model(rows, keys), training.answers(rows, keys))
                moved.norm(torch.ones(1, WIDTH))
                assert torch.equal(moved.first.bias, before)
                assert_equal_to(reader, tmp_path / "run")
            # Neither a later version hides it, nor a read by name.
            with torch.no_grad():
                model.first.weight.add_(1)
            with pytest.raises(FailedPreconditionError, match=r"copy\.deepcopy"):
                reader.value("first.weight")
            eventually(lambda: reader.replica.is_intact, _SECONDS)
            with torch.no_grad():
                model.first.weight.add_(1)
            training.train()
            saved(training, tmp_path / "run", reader)
            assert_equal_to(reader, tmp_path / "run")


def test_a_fault_of_ours_ends_following_and_is_told_by_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    with Reader(tmp_path, timeout=_SECONDS) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(reader.replica, "prepare", None)
            write(tmp_path, 2)
            with pytest.raises(InternalError, match="is not callable"):
                reader.wait_for(2, timeout=_SECONDS)
        for read in (lambda: reader.value("one"), lambda: reader.pin().__enter__()):
            with pytest.raises(InternalError, match="make another reader") as told:
                read()
            assert isinstance(told.value.__cause__, TypeError)
    assert "follows no more" in caplog.text


def test_modules_that_are_used_otherwise_are_refused(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "run")
    rows, keys = training.batch()
    with Reader(tmp_path / "run", timeout=_SECONDS) as reader:
        model = reader.module(Model)
        with pytest.raises(FailedPreconditionError, match=r"call eval\(\)"):
            model.train()(rows, keys)
        model.eval()
        with pytest.raises(InvalidArgumentError, match="follows a reader, which changes nothing"):
            model.fixed.weight.data.zero_()
        with pytest.raises(NotFoundError, match=r"has no 'other\.weight'"):
            reader.module(lambda: torch.nn.ModuleDict({"other": torch.nn.Linear(1, 1)}))
        with pytest.raises(InvalidArgumentError, match=r"shape \(5, 4\)"):
            reader.module(lambda: torch.nn.ModuleDict({"first": torch.nn.Linear(4, 5)}))
        with pytest.raises(NotFoundError, match=r"strategy\.scope"):
            reader.module(Model, name="tower")


def test_rows_values_and_keys_are_read_by_name(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "run")
        with Reader(tmp_path / "run", timeout=_SECONDS) as reader:
            rows, model = torch.arange(ROWS).view(2, -1), training.model
            assert torch.equal(reader.lookup("fixed.weight", rows), model.fixed(rows))
            stored = reader.keys("dynamic.weight")
            trained = torch.cat(list(model.dynamic.keys()))
            assert torch.equal(stored.sort().values, trained.sort().values)
            unknown = torch.tensor([1 << 50, int(stored[0])])
            found = reader.lookup("dynamic.weight", unknown)
            assert torch.equal(found, model.dynamic(unknown))
            found = reader.lookup("dynamic.weight", unknown.int().new_tensor([7 << 20]), default=2)
            assert torch.equal(found, torch.full((1, WIDTH), 2.0))
            assert torch.equal(
                reader.lookup("first.weight", torch.tensor([2])), model.first.weight[2:3]
            )
            with pytest.raises(RowIndexError, match=f"has no row {ROWS}"):
                reader.lookup("fixed.weight", torch.tensor([0, ROWS]))
            with pytest.raises(VariableNotFoundError, match="has no variable 'none', but"):
                reader.lookup("none", torch.tensor([0]))
            with pytest.raises(InvalidArgumentError, match=r"lookup\(\)"):
                reader.value("fixed.weight")
            with pytest.raises(InvalidArgumentError, match=r"value\(\)"):
                reader.keys("first.weight")
            with pytest.raises(InvalidTypeError, match="tensor of integers"):
                reader.lookup("fixed.weight", torch.tensor([0.5]))
            with pytest.raises(InvalidArgumentError, match="default has shape"):
                reader.lookup("dynamic.weight", unknown, default=torch.zeros(3))


def write(root: Path, number: float, rows: int = 4) -> None:
    value = torch.full((rows, 2), number)
    save_at(root, [[(model_spec("one", value), value)]], keep=3)


def test_a_damaged_increment_ends_nothing_and_the_next_whole_one_is_read(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with running(1) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(root)
        with Reader(root, timeout=_SECONDS) as reader:
            first = reader.version
            training.train()
            reader_paused = threading.Event()
            look = reader.source.latest

            def latest(after, wait):  # type: ignore[no-untyped-def]
                reader_paused.wait(_SECONDS)
                return look(after, wait)

            reader.source.latest = latest  # type: ignore[method-assign]
            strategy.save(root, incremental=True)
            [part] = sorted(root.glob("checkpoint-*/part-0.safetensors"))[-1:]
            data = bytearray(part.read_bytes())
            data[-1] ^= 1
            part.write_bytes(data)
            reader_paused.set()
            eventually(lambda: isinstance(reader.source_error, DataLossError), _SECONDS)
            assert reader.version == first and "is damaged" in str(reader.source_error)
            strategy.save(root)
            assert reader.wait_for(first + 1, _SECONDS)
            assert_equal_to(reader, root)
            eventually(lambda: reader.source_error is None, _SECONDS)


def test_a_folder_without_anything_is_waited_for_and_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no checkpoint to follow in"):
        Reader(tmp_path / "nothing", timeout=0.3)
    with Reader(tmp_path / "later", timeout=0) as reader:
        assert reader.version == 0 and reader.age == float("inf")
        with pytest.raises(FailedPreconditionError, match="there is no version of"):
            reader.lookup("one", torch.tensor([0]))
        with pytest.raises(DeadlineExceededError, match="no checkpoint to follow"):
            reader.wait_for(1, 0.3)
        write(tmp_path / "later", 1.0)
        reader.wait_for(1, _SECONDS)
        assert torch.equal(reader.value("one"), torch.full((4, 2), 1.0))


def test_what_an_earlier_release_has_written_is_followed(tmp_path: Path) -> None:
    """Its versions are the numbers of the checkpoints."""
    write(tmp_path / "run", 1.0)
    with Reader(tmp_path / "run", timeout=_SECONDS) as reader:
        assert reader.version == 1
        write(tmp_path / "run", 2.0)
        assert reader.wait_for(2, _SECONDS) == 2
        assert torch.equal(reader.value("one"), torch.full((4, 2), 2.0))


def test_another_model_in_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", 1.0)
    with Reader(tmp_path / "run", timeout=_SECONDS) as reader:
        write(tmp_path / "run", 2.0, rows=5)
        eventually(lambda: reader.source_error is not None, _SECONDS)
        assert isinstance(reader.source_error, DifferentTrainingError)
        assert reader.version == 1 and torch.equal(reader.value("one"), torch.full((4, 2), 1.0))


def test_a_vanished_folder_ages_until_that_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", 1.0)
    with Reader(tmp_path / "run", timeout=_SECONDS, max_age=1.5) as reader:
        assert torch.equal(reader.value("one"), torch.full((4, 2), 1.0))
        shutil.rmtree(tmp_path / "run")
        eventually(lambda: isinstance(reader.source_error, NotFoundError), _SECONDS)
        eventually(lambda: reader.age > 1.5, _SECONDS)
        with pytest.raises(StaleVersionError, match=r"max_age is 1\.5 s .*no checkpoint to follow"):
            reader.value("one")


def edited(root: Path, number: int, **facts: object) -> None:
    """Changes what the index of a checkpoint says, and makes it the latest."""
    folder = root / f"checkpoint-{number}"
    document = json.loads((folder / "index.json").read_text())
    content = {**document["content"], **facts}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    whole = {"content": content, "crc32": zlib.crc32(text)}
    data = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
    (folder / "index.json").write_bytes(data)
    (root / "latest").write_bytes(latest_of(folder.name, data))


def test_a_newer_format_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "run", 1.0)
    edited(tmp_path / "run", 1, format=99)
    with pytest.raises(FailedPreconditionError, match=r"has format 99.*or a later one"):
        Reader(tmp_path / "run", timeout=_SECONDS)


def test_versions_that_go_back_are_two_publishers(tmp_path: Path) -> None:
    root = tmp_path / "run"
    write(root, 1.0)
    one = {"version": 1000, "cut": "ab" * 16, "milliseconds": 1000}
    edited(root, 1, published=one)
    with Reader(root, timeout=_SECONDS) as reader:
        assert reader.version == 1000 and reader.age > 1e6
        write(root, 2.0)
        edited(root, 2, published={**one, "version": 900})
        eventually(lambda: reader.source_error is not None, _SECONDS)
        assert "two programs save there" in str(reader.source_error)
        assert torch.equal(reader.value("one"), torch.full((4, 2), 1.0))
        edited(root, 2, published={**one, "version": 1001})
        assert reader.wait_for(1001, _SECONDS)
        assert torch.equal(reader.value("one"), torch.full((4, 2), 2.0))


def test_what_cannot_be_a_version_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "run", 1.0)
    for wrong in ({"version": 0, "cut": "", "milliseconds": 1}, {"version": "x"}, 7):
        edited(tmp_path / "run", 1, published=wrong)
        with pytest.raises(DataLossError):
            Index.from_bytes((tmp_path / "run/checkpoint-1/index.json").read_bytes(), "index")


def test_sources_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="pass a folder or a URL"):
        Reader(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="mount the storage"):
        Reader("http://example.com/x")
    with pytest.raises(InvalidArgumentError, match="above 0"):
        Reader("/tmp", lease=0)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("stratagem").setLevel(logging.WARNING)
    yield

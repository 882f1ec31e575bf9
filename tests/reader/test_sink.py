"""Versions that are written to a folder of their own, for others to follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem import DifferentTrainingError, InvalidArgumentError, Reader
from stratagem_reader.sink import StoreSink
from stratagem_reader.store_source import StoreSource
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.client.clusters import running
from tests.reader.followed import Training, assert_equal_to


def test_a_folder_of_versions_is_followed_as_what_it_was_written_from(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(source)
        sink = StoreSink(StoreSource(source), target, keep=2)
        (first,) = sink.write_next(0.0)
        with Reader(target) as reader:
            assert reader.version == first.number
            for number in range(4):
                training.train(steps=1)
                strategy.save(source, incremental=True)
                if number == 2:
                    # One that begins anew goes on where the folder is.
                    sink = StoreSink(StoreSource(source), target, keep=2)
                (written,) = sink.write_next(0.0)
                reader.wait_for(written.number)
                assert_equal_to(reader, source)
                mine, theirs = open_checkpoint(target), open_checkpoint(source)
                assert mine.index.published is not None and theirs.index.published is not None
                assert mine.index.published.version == theirs.index.published.version
                assert len(mine.index.bases) == number + 1
                for name, file in theirs.index.files.items():
                    assert mine.index.files[name] == file
                    files = Path(str(mine.folder)) / name, Path(str(theirs.folder)) / name
                    assert files[0].read_bytes() == files[1].read_bytes()
                mine.verify()
            assert sink.write_next(0.0) == []
            strategy.save(source)
            (written,) = sink.write_next(0.0)
            assert reader.wait_for(written.number)
            assert open_checkpoint(target).index.base is None
            assert len([*target.glob("checkpoint-*")]) <= 2 + 5
    with running(1) as cluster, cluster.strategy() as strategy:
        other = Training(strategy)
        other.train()
        strategy.save(tmp_path / "other")
        with pytest.raises(DifferentTrainingError, match="write to another folder"):
            StoreSink(StoreSource(tmp_path / "other"), target).write_next(0.0)


def test_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="keep at least 1"):
        StoreSink(StoreSource(tmp_path), tmp_path, keep=0)
    with pytest.raises(InvalidArgumentError, match="at most 64 increments"):
        StoreSink(StoreSource(tmp_path), tmp_path, whole_every=65)

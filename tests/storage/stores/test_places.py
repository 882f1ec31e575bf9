"""What users write for places of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem_proto.errors import InvalidArgumentError
from stratagem_storage.stores.places import StoreUrl, absolute_place, place_of, shared_place


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("s3a://bucket/runs/7/", "s3://bucket/runs/7"),
        ("S3://bucket", "s3://bucket"),
        ("gcs://bucket/run", "gs://bucket/run"),
        ("memory://run", "memory://run"),
    ],
)
def test_urls_of_stores_are_places(written: str, place: str) -> None:
    for path in (written, Path(written)):
        found = place_of(path)
        assert isinstance(found, StoreUrl)
        assert str(found) == str(absolute_place(found)) == place


def test_urls_of_files_are_paths() -> None:
    assert place_of("file:///tmp/run") == place_of(Path("file:///tmp/run")) == Path("/tmp/run")
    with pytest.raises(InvalidArgumentError, match="another host"):
        place_of("file://host/run")


def test_paths_stay_what_they_are() -> None:
    for path in ("run", "/tmp/run", "a:b", "C:/run"):
        assert place_of(path) == Path(path)
    assert absolute_place("a/../run") == Path.cwd() / "run"


@pytest.mark.parametrize("url", ["http://host/run", "ssh://host/run", "simplecache::s3://b/run"])
def test_urls_of_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is a URL"):
        place_of(url)


def test_a_refused_url_is_told_as_it_was_written() -> None:
    for path in ("ftp://host/run", Path("ftp://host/run")):
        with pytest.raises(InvalidArgumentError, match=r"^'ftp://host/run' is a URL"):
            place_of(path)


@pytest.mark.parametrize(
    "rest", ["bucket//run", "bucket/../run", "bucket/.", "bucket/a\nb", "", "/bucket/run"]
)
def test_urls_that_name_no_place_are_refused(rest: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not the URL of a place"):
        place_of(f"s3://{rest}")


@pytest.mark.parametrize(
    "url",
    ["s3://key:SECRET@bucket/run", "s3://bucket/run?key=SECRET", "http://me:SECRET@host/run"],
)
def test_secrets_in_urls_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        place_of(url)
    assert "SECRET" not in str(refused.value)


def test_the_memory_of_one_process_is_no_place_for_several() -> None:
    assert str(shared_place("s3://bucket/run")) == "s3://bucket/run"
    with pytest.raises(InvalidArgumentError, match="memory of one process"):
        shared_place("memory://run")

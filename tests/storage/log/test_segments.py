"""The files of a log: what was not written in full, and what was damaged later."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import DataLossError, FailedPreconditionError
from stratagem_proto.v1.log_pb2 import EndedSession, LogRecord, SegmentHead
from stratagem_storage.log import (
    FORMAT,
    HEADER_BYTES,
    Entry,
    LogReader,
    Record,
    Tail,
    decode_contents,
    decode_header,
    encode_batch,
    segment_name,
)
from stratagem_storage.open_folders import OpenFolder


def entry(number: int) -> Entry:
    record = LogRecord(ended=EndedSession(why=f"reason {number}"))
    return Entry(record.SerializeToString(), bytes(number))


def batch(first: int, size: int) -> bytes:
    """A batch with so many records."""
    return b"".join(encode_batch(first, [entry(number) for number in range(first, first + size)]))


def segment(folder: Path, first: int, *batches: int) -> Path:
    """Writes a segment with batches of so many records."""
    path, head = folder / segment_name(first), SegmentHead(format=FORMAT, first=first)
    data = [*encode_batch(0, [Entry(head.SerializeToString())])]
    for size in batches:
        data.append(batch(first, size))
        first += size
    path.write_bytes(b"".join(data))
    return path


def read(*segments: Path) -> tuple[list[Record], Tail | None]:
    reader = LogReader(segments)
    return list(reader.records()), reader.tail


@given(st.integers(0), st.lists(st.tuples(st.binary(), st.binary())))
def test_a_batch_has_the_records_that_were_written(
    first: int, contents: list[tuple[bytes, bytes]]
) -> None:
    entries = [Entry(*each) for each in contents]
    data = memoryview(b"".join(encode_batch(first % 2**64, entries)))
    header = decode_header(data[:HEADER_BYTES])
    assert header is not None
    assert (header.first, header.records) == (first % 2**64, len(entries))
    found = decode_contents(header, data[HEADER_BYTES:])
    assert found is not None
    assert [(each.message, bytes(each.tensors)) for each in found] == contents


def test_records_are_read_in_their_order_over_all_segments(tmp_path: Path) -> None:
    records, tail = read(segment(tmp_path, 1, 2, 1), segment(tmp_path, 4, 3))
    assert [each.position for each in records] == [1, 2, 3, 4, 5, 6]
    assert [each.message.ended.why for each in records][3] == "reason 4"
    assert bytes(records[4].tensors) == bytes(5)
    assert tail is None


def test_a_segment_cut_anywhere_has_the_batches_before_the_cut(tmp_path: Path) -> None:
    path = segment(tmp_path, 1, 1, 2, 1)
    data = path.read_bytes()
    whole = {0: 0}
    for size in range(len(data)):
        path.write_bytes(data[:size])
        records, tail = read(path)
        whole[len(records)] = max(whole.get(len(records), 0), size)
        if tail is not None:
            assert tail == Tail(path, tail.offset)
            path.write_bytes(data[: tail.offset])
            assert read(path)[0] == records or not tail.offset
    assert sorted(whole) == [0, 1, 3]


def test_a_byte_that_was_changed_behind_the_last_batch_but_one_is_a_loss(tmp_path: Path) -> None:
    path = segment(tmp_path, 1, 1, 2, 1)
    data = path.read_bytes()
    last = len(data) - len(batch(4, 1))
    for place in range(last):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataLossError, match=r"segment-0+1\.log.* from byte \d+ on"):
            read(path)


def test_old_batches_behind_the_end_are_neither_read_nor_damage(tmp_path: Path) -> None:
    old = segment(tmp_path, 1, 1, 1, 1, 1).read_bytes()
    path = segment(tmp_path, 5, 1, 1)
    data = path.read_bytes()
    heads = [len(old) - sum(len(batch(first, 1)) for first in range(1, 5))]
    # Where old batches begin is where the next one would, or anywhere else.
    for behind in (old[heads[0] :], old[len(data) :], bytes(100), b"\0" + old):
        path.write_bytes(data + behind)
        records, tail = read(path)
        assert [each.position for each in records] == [5, 6]
        assert tail == Tail(path, len(data))


def test_a_torn_batch_over_old_ones_is_no_damage_but_one_before_a_newer_batch_is(
    tmp_path: Path,
) -> None:
    path = segment(tmp_path, 5, 1)
    data, torn, old = path.read_bytes(), batch(6, 1)[:-1], batch(3, 2)
    path.write_bytes(data + torn + old)
    assert [each.position for each in read(path)[0]] == [5]
    path.write_bytes(data + torn + old + batch(7, 1))
    with pytest.raises(DataLossError, match=f"from byte {len(data)} on"):
        read(path)


def test_what_a_server_writes_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment(tmp_path, 1, 1, 1, 1)
    data, size = path.read_bytes(), len(batch(2, 1))
    begin = len(data) - size - len(batch(3, 1))
    early, read_bytes = data[:begin] + bytes(size) + data[begin + size :], Path.read_bytes
    seen = iter([early])
    monkeypatch.setattr(Path, "read_bytes", lambda path: next(seen, None) or read_bytes(path))
    assert [each.position for each in read(path)[0]] == [1, 2, 3]


def test_a_segment_that_lost_its_name_while_it_was_read_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment(tmp_path, 1, 1)
    file = OpenFolder.file

    def renamed(folder: OpenFolder, name: str) -> BinaryIO:
        opened = file(folder, name)
        (folder.path / name).rename(tmp_path / "spare")
        return opened

    monkeypatch.setattr(OpenFolder, "file", renamed)
    with pytest.raises(FileNotFoundError):
        read(path)


def test_a_damaged_end_of_an_earlier_segment_is_a_loss(tmp_path: Path) -> None:
    first, second = segment(tmp_path, 1, 2), segment(tmp_path, 3, 1)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(DataLossError, match="behind record 0"):
        read(first, second)


@pytest.mark.parametrize(
    "left",
    [bytes(1000), batch(4, 2), batch(4, 2)[:-1], batch(1, 9)],
    ids=["zeros", "an attempt that failed", "a torn one", "an earlier use"],
)
def test_what_is_left_behind_the_end_of_an_earlier_segment_is_not_read(
    tmp_path: Path, left: bytes
) -> None:
    first, second = segment(tmp_path, 1, 1, 2), segment(tmp_path, 4, 3)
    with first.open("ab") as file:
        file.write(left)
    records, tail = read(first, second)
    assert [record.position for record in records] == [1, 2, 3, 4, 5, 6]
    assert tail is None


def test_a_segment_that_is_missing_is_a_loss(tmp_path: Path) -> None:
    segments = segment(tmp_path, 1, 2), segment(tmp_path, 3, 1), segment(tmp_path, 4, 1)
    with pytest.raises(DataLossError, match=r"record 4 .* follows record 2"):
        read(segments[0], segments[2])


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    head = SegmentHead(format=FORMAT + 1, first=1, release="9.9.9").SerializeToString()
    path.write_bytes(b"".join(encode_batch(0, [Entry(head)])))
    said = f"format {FORMAT + 1} of logs, by stratagem 9.9.9; this one, .*, reads format {FORMAT}"
    with pytest.raises(FailedPreconditionError, match=said):
        read(path)

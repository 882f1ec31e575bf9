"""One version at a time: pins, their leases, and who waits for whom."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from stratagem import FailedPreconditionError, InvalidArgumentError, Reader, VersionExpiredError
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.variable_pb2 import DynamicKeys, TableSpec, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_reader.source import Chain, Extent, Version
from stratagem_storage.checkpoint.entries import KEYS, FileEntry, TensorEntry, companion
from stratagem_storage.checkpoint.parts import Content, Part
from tests.waiting import eventually

_SECONDS = 30.0
ROWS, WIDTH = 200, 8


class WrittenPart:
    """A part in memory, with what a server writes."""

    def __init__(self, version: Version, part: Part, values: Sequence[torch.Tensor]) -> None:
        self.name, self.version = f"version {version.number}", version
        self._data = b"".join(bytes(block) for block in part.blocks(values))
        file = part.file()
        self.files: Mapping[str, FileEntry] = {file.name: file.file}
        self.tensors: Mapping[str, TensorEntry] = {one.name: one for one in file.tensors}

    def replace(self, old: bytes, new: bytes) -> None:
        assert self._data.count(old) == 1
        self._data = self._data.replace(old, new)

    def read(self, extents: Mapping[str, Sequence[Extent]]) -> None:
        for some in extents.values():
            for begin, target in some:
                target[:] = self._data[begin : begin + len(target)]

    def blocks(self, file: str) -> Iterator[memoryview]:
        yield memoryview(self._data)


class Numbered:
    """A source all of whose values are the number of their version; some rows change in each."""

    name = "numbers"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest, self._closed = 1, False

    def publish(self) -> int:
        with self._changed:
            self._latest += 1
            self._changed.notify_all()
            return self._latest

    def latest(self, after: Version | None, wait_seconds: float) -> Version | None:
        number = after.number if after else 0
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._latest != number, wait_seconds)
            return Version(self._latest, b"", time.time()) if self._latest > number else None

    def chains(self, version: Version, since: Version | None) -> tuple[Version, Sequence[Chain]]:
        value = float(version.number)
        every = torch.arange(ROWS) if since else None
        table = VariableSpec(name="table", table=TableSpec(dynamic=DynamicKeys()))
        table.tensor.CopyFrom(spec_of(torch.empty(0, WIDTH)))
        table.initializer.constant = 0.0
        rows = StoredRows(count=ROWS)
        # Each key moves to the position after its own.
        keys = (torch.arange(ROWS) + version.number) % ROWS
        dense = torch.full((WIDTH, WIDTH), value)
        contents = [
            Content(VariableSpec(name="weight", tensor=spec_of(dense))),
            Content(table, rows=rows, changed=every),
            Content(companion("table", KEYS, ROWS), changed=every),
        ]
        values = [dense, torch.full((ROWS, WIDTH), value), keys]
        if since:
            numbered = [values[0]]
            for one in values[1:]:
                numbered += [torch.arange(ROWS), one]
            values = numbered
        return version, [[WrittenPart(version, Part("part-0.safetensors", contents), values)]]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Both(nn.Module):
    """A forward that shows which version each of its values is of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH))

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        first = self.weight.mean()
        time.sleep(0.001)
        return torch.stack([first, self.weight.mean(), *seen.flatten()[:1]])


@pytest.fixture
def source() -> Numbered:
    return Numbered()


def test_reads_at_once_never_mix_two_versions(source: Numbered) -> None:
    done = threading.Event()

    def publish() -> int:
        count = 0
        while not done.is_set():
            source.publish()
            count += 1
            time.sleep(0.002)
        return count

    def read(reader: Reader, model: nn.Module, worker: int) -> set[int]:
        keys, seen, last = torch.arange(ROWS), set[int](), 0
        while time.monotonic() < end:
            if worker % 2:
                with reader.pin() as version:
                    values = [
                        *reader.lookup("table", keys).unique(),
                        *reader.value("weight").unique(),
                    ]
                    values += [*reader.lookup("weight", torch.tensor([0])).unique()]
                    assert {int(value) for value in values} == {version} == {reader.version}
            else:
                output = model(reader.lookup("table", keys))
                assert output[0] == output[1]
                version = int(output[0])
                (only,) = reader.lookup("table", keys).unique().tolist()
                assert only >= version
            assert version >= last
            last = version
            seen.add(version)
        return seen

    with Reader(source, timeout=_SECONDS) as reader, ThreadPoolExecutor(6) as threads:
        model = reader.follow(Both())
        end = time.monotonic() + 2.0
        publishing = threads.submit(publish)
        readers = [threads.submit(read, reader, model, worker) for worker in range(4)]
        try:
            found = [each.result() for each in readers]
        finally:
            done.set()
        assert publishing.result() > 20
        # Neither have readers kept later versions away, nor those the readers.
        assert all(len(seen) > 10 for seen in found)
        eventually(lambda: reader.version == source._latest, _SECONDS)


def test_a_pin_holds_its_version_until_it_ends(source: Numbered) -> None:
    with Reader(source, timeout=_SECONDS) as reader:
        with reader.pin(lease=60.0) as version:
            later = source.publish()
            with pytest.raises(FailedPreconditionError, match="wait outside of the pin"):
                reader.wait_for(later)
            with ThreadPoolExecutor(1) as threads:
                # Others, too, go on reading, since nothing is in place yet.
                assert threads.submit(lambda: reader.version).result(_SECONDS) == version
                value = threads.submit(lambda: reader.value("weight")).result(_SECONDS)
            assert value.unique().tolist() == [version]
            with reader.pin(lease=0.001) as within:
                assert within == version
        assert reader.wait_for(later, _SECONDS) == later


def test_a_lease_that_runs_out_lets_the_next_version_in_and_says_so(source: Numbered) -> None:
    with Reader(source, timeout=_SECONDS) as reader:
        model = reader.follow(Both())
        reads: list[Callable[[], object]] = [
            lambda: reader.lookup("table", torch.tensor([1])),
            lambda: reader.value("weight"),
            lambda: reader.keys("table"),
            lambda: model(torch.zeros(1)),
        ]
        expired = pytest.raises(VersionExpiredError, match=r"pinned for 0\.2 s, .*longer lease")
        with expired, reader.pin(lease=0.2) as version:
            later = source.publish()
            eventually(lambda: reader.replica.number == later, _SECONDS)
            assert reader.version == version
            for read in reads:
                with pytest.raises(VersionExpiredError):
                    read()
        with reader.pin() as version:
            assert version == later
        # An error of the block is the one that is raised.
        with pytest.raises(KeyError), reader.pin(lease=0.001):
            time.sleep(0.01)
            raise KeyError
        with pytest.raises(InvalidArgumentError, match="above 0"), reader.pin(lease=0):
            pass


def test_a_forward_that_outlives_its_lease_raises(source: Numbered) -> None:
    class Slow(Both):
        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            time.sleep(0.1)
            return super().forward(seen)

    with Reader(source, timeout=_SECONDS, lease=0.05) as reader:
        model = reader.follow(Slow())
        with pytest.raises(VersionExpiredError):
            model(torch.zeros(1))
        with reader.pin(lease=60.0):
            model(torch.zeros(1))


def test_tasks_of_one_thread_have_pins_of_their_own(source: Numbered) -> None:
    async def first(reader: Reader, entered: asyncio.Event, later: asyncio.Event) -> None:
        with reader.pin() as version:
            entered.set()
            await later.wait()
            assert reader.version == version

    async def second(reader: Reader, entered: asyncio.Event, later: asyncio.Event) -> None:
        await entered.wait()
        assert reader.pins.current() is None
        later.set()

    async def both(reader: Reader) -> None:
        entered, later = asyncio.Event(), asyncio.Event()
        await asyncio.gather(first(reader, entered, later), second(reader, entered, later))

    with Reader(source, timeout=_SECONDS) as reader:
        asyncio.run(both(reader))

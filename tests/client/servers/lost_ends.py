"""Servers whose folder loses what they had answered, and live programs that know better."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from stratagem_storage.log import HEADER_BYTES, WRITTEN, decode_header, segments_in
from tests.client.servers.remembering import (
    PROGRAMS,
    LoggedServer,
    Program,
    faults_of,
    reader,
    refuses_to_start,
)
from tests.psserver.persistence.servers import end_of


def batches_of(segment: Path) -> list[int]:
    """Where the batches of a segment begin, and its end; its head is no batch."""
    data, begins = segment.read_bytes(), []
    offset, end = 0, end_of(segment)
    while offset < end:
        begins.append(offset)
        header = decode_header(data[offset:])
        assert header is not None
        offset += HEADER_BYTES + header.nbytes
    return [*begins[1:], end]


def last_bit(state: Path, chance: random.Random) -> None:
    """Flip a bit of the last batch."""
    segment = segments_in(state)[-1]
    *_, begin, end = batches_of(segment)
    with segment.open("r+b") as file:
        file.seek(place := chance.randrange(begin, end))
        byte = file.read(1)[0] ^ 1 << chance.randrange(8)
        file.seek(place)
        file.write(bytes([byte]))


def cut_batches(state: Path, chance: random.Random) -> None:
    """Cut a few batches off, at the end of one or within it."""
    segment = segments_in(state)[-1]
    begins = batches_of(segment)
    begin = begins[max(0, len(begins) - 1 - chance.randint(1, 8))]
    os.truncate(segment, chance.randint(begin, begins[-1] - 1))


def last_segment(state: Path, chance: random.Random) -> None:
    """Delete the last segment."""
    segments_in(state)[-1].unlink()


DAMAGES: Mapping[str, Callable[[Path, random.Random], None]] = {
    "a bit": last_bit,
    "batches": cut_batches,
    "a segment": last_segment,
}
"""What befalls a folder without an older copy of it."""


def damaged(server: LoggedServer, chance: random.Random) -> str:
    """Damages a copy of what a server has left; returns how."""
    how = chance.choice([*DAMAGES])
    DAMAGES[how](server.state, chance)
    return how


def forget_note(state: Path) -> None:
    """Remove what says outside of the segments how far they go, as an older release leaves it."""
    (state / WRITTEN).unlink()


class Trial:
    """A program and its readers, whose server loses what they know.

    Args:
        root: An empty folder.
        seed: Decides what happens.

    Attributes:
        damages: How many folders were damaged.
        faults: What should not have happened.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.damages, self.faults = 0, list[str]()
        self._root, self._chance = root, random.Random(seed)
        self._name = self._chance.choice([*PROGRAMS])

    def run(self, refused: int = 4) -> None:
        """Train, lose, and see who finds it.

        Args:
            refused: How many damages the server is to find at its start, before one that only its
                clients can find.
        """
        chance = self._chance
        with ExitStack() as stack:
            server = LoggedServer(self._root, stack, log_records=chance.choice((8, 100_000)))
            writer = PROGRAMS[self._name](server, stack)
            readers = [reader(server, stack, writer) for _ in range(chance.randint(0, 2))]
            programs = [writer, *readers]
            older = self._trained(server, programs)
            server.kill()
            left = server.folder
            for _ in range(refused):
                server.folder = left
                server.folder = server.copied()
                how = damaged(server, chance)
                self.damages += 1
                if not refuses_to_start(server):
                    # Nobody was told of a batch that was on disk for less than a moment.
                    if server.look() < max(program.known for program in programs):
                        self.faults.append(f"{self._name}: a server starts that has lost {how}")
                    server.stop()
            how = self._lost(server, left, older)
            self.damages += 1
            if refuses_to_start(server):
                return
            there = server.look()
            if chance.random() < 0.4 and server.has_variable:
                # Positions and versions of what is lost are used again.
                server.add(max(program.known for program in programs) + 1 - there)
            chance.shuffle(programs)
            for program in programs:
                for fault in faults_of(program, there):
                    self.faults.append(f"{self._name}, {how}: {fault}")

    def _trained(self, server: LoggedServer, programs: Sequence[Program]) -> Path:
        """Train for a while, with ends that lose nothing; return an older copy."""
        chance, (writer, *readers) = self._chance, programs
        writer.add()
        older = server.copied()
        for _ in range(chance.randint(2, 12)):
            writer.add()
            for each in readers:
                if chance.random() < 0.5:
                    each.read()
            if chance.random() < 0.1:
                server.kill()
                server.start()
            if chance.random() < 0.2:
                older = server.copied()
        writer.add()
        return older

    def _lost(self, server: LoggedServer, left: Path, older: Path) -> str:
        """Lose something of which the folder says nothing; return how."""
        if self._chance.random() < 0.5:
            server.folder = older
            return "an older copy"
        server.folder = left
        how = damaged(server, self._chance)
        forget_note(server.state)
        return how

"""The processes of contestants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from typing_extensions import Self

from benchmarks.harness.contest import Contestant
from benchmarks.harness.environments import python_of
from benchmarks.peers.process import Peer, Program

# Each is busy with one processor while it starts.
_STARTED_AT_ONCE = 2

Running: TypeAlias = tuple[Contestant, Peer]


class Programs:
    """Contestants that run, for as long as contests need them.

    A context manager, which ends them all.
    """

    def __init__(self) -> None:
        self._running: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._running)

    def assemble(self, contestants: Sequence[Contestant]) -> Mapping[str, str]:
        """Has these run and no others; returns why some do not, by name."""
        self._end([each for each in self._running if each[0] not in contestants])
        there = [contestant for contestant, _ in self._running]
        absent = [each for each in contestants if each not in there]
        failed: dict[str, str] = {}
        for first in range(0, len(absent), _STARTED_AT_ONCE):
            failed |= self._start(absent[first : first + _STARTED_AT_ONCE])
        return failed

    def by_name(self) -> Mapping[str, Peer]:
        """Those that run."""
        return {contestant.name: program for contestant, program in self._running}

    def drop(self, name: str) -> None:
        """Ends the one of that name."""
        self._end([each for each in self._running if each[0].name == name])

    def _start(self, contestants: Sequence[Contestant]) -> Mapping[str, str]:
        starting = []
        for each in contestants:
            starting.append((each, Peer(_program(each))))
            self._running.append(starting[-1])
        failed = {}
        for contestant, program in starting:
            try:
                program.wait_until_ready()
            except RuntimeError as error:
                failed[contestant.name] = str(error)
                self.drop(contestant.name)
        return failed

    def _end(self, running: Sequence[Running]) -> None:
        # All at once, as some take seconds.
        for _, program in running:
            program.dismiss()
        for _, program in running:
            program.end()
        self._running = [each for each in self._running if each not in running]


def _program(contestant: Contestant) -> Program:
    return Program(
        python_of(contestant.peer),
        f"benchmarks.peers.{contestant.module}",
        contestant.arguments,
        contestant.settings,
        contestant.restless,
    )

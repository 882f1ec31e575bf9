"""What the replicas of a worker get in each step, one round after the other, on their devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from stratagem._core.nests import leaves, map_leaves
from stratagem._input.reader import Reader, State
from stratagem._input.splitting import cut, rows_in, split, without_rows


@dataclass(frozen=True)
class Position:
    """Where reading stands.

    Attributes:
        states: Of each reader; None is the beginning.
        taken: How many rounds were taken of the element that comes next.
    """

    states: Sequence[State] | None = None
    taken: int = 0


BEGINNING = Position()


@dataclass(frozen=True)
class Round:
    """The input of one step.

    Attributes:
        parts: A nest for each replica of this worker, in replica order.
        position: The one after it.
        digest: Of what workers that read one order have to find here; None where they do not.
    """

    parts: Sequence[Any]
    position: Position
    digest: int | None = None


class Dealt(NamedTuple):
    """What becomes of what was read at once.

    Attributes:
        rounds: The parts of each replica, of one round or of several.
        digest: As in `Round`.
    """

    rounds: list[Sequence[Any]]
    digest: int | None = None


class Dealing(Protocol):
    """How elements of datasets become rounds."""

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Read what comes next and return the parts of each replica.

        Raises:
            StopIteration: The data have ended.
        """

    def steps(self, lengths: Sequence[int]) -> int | None:
        """Return the number of rounds in datasets of these lengths, if it is known."""


def _undigested(element: Any) -> tuple[None, Any]:
    return None, element


@dataclass(frozen=True)
class SplitBatches:
    """Each element is a batch for all replicas in sync, which is cut into chunks.

    Attributes:
        chunks: Into how many.
        turns: The numbers of those that this worker's replicas take, in replica order, for each
            step that an element lasts.
        digested: Returns the digest and the batch of an element, where the workers have to read the
            same.

    Spec: INP-1, INP-10 to INP-16, INP-27.
    """

    chunks: int
    turns: Sequence[range]
    digested: Callable[[Any], tuple[int | None, Any]] = _undigested

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Split the next element of the only reader.

        A turn for which no rows are left is no round, unless it is the only one.
        """
        digest, element = self.digested(next(readers[0]))
        if self.chunks == 1:
            return Dealt([[element]], digest)
        chunks = split(element, self.chunks)
        later = [turn for turn in self.turns[1:] if rows_in(chunks[turn.start])]
        turns = [self.turns[0], *later]
        return Dealt([[chunks[number] for number in turn] for turn in turns], digest)

    def steps(self, lengths: Sequence[int]) -> int | None:
        """One for each element; a longer element lasts by the rows it has."""
        return lengths[0] if len(self.turns) == 1 else None


@dataclass(frozen=True)
class CutOwnRows:
    """Each element has the rows of this worker alone, behind a digest and the size of their chunks.

    Attributes:
        replicas: How many this worker has.

    Spec: INP-11, INP-15.
    """

    replicas: int

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Cut the next element of the only reader."""
        digest, size, rows = next(readers[0])
        return Dealt([cut(rows, int(size), self.replicas)], int(digest))

    def steps(self, lengths: Sequence[int]) -> int:
        """One for each element."""
        return lengths[0]


_MISSING = object()


@dataclass(frozen=True)
class DealElements:
    """Each element is for one replica.

    The replicas read in turn from one reader, or each from its own. In the last round those without
    data get tensors with 0 rows.

    Attributes:
        replicas: How many there are.
        whole_rounds: Drop a last round that has not an element for each of them.

    Spec: INP-2, INP-6, INP-28 to INP-30b, INP-35.
    """

    replicas: int
    whole_rounds: bool = False

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Take one element for each replica."""
        turns = [readers[index % len(readers)] for index in range(self.replicas)]
        elements = [next(reader, _MISSING) for reader in turns]
        present = [element for element in elements if element is not _MISSING]
        if len(present) < (self.replicas if self.whole_rounds else 1):
            raise StopIteration
        parts = [
            without_rows(present[0]) if element is _MISSING else element for element in elements
        ]
        return Dealt([parts])

    def steps(self, lengths: Sequence[int]) -> int:
        """Enough for the longest dataset, or for as many as are whole."""
        if len(lengths) > 1:
            return min(lengths) if self.whole_rounds else max(lengths)
        rounded_up = 0 if self.whole_rounds else self.replicas - 1
        return (lengths[0] + rounded_up) // self.replicas


class DealtRounds(Iterator[Round]):
    """The rounds that `dealing` makes of what `readers` read.

    Args:
        readers: They stand where `position` says.
        dealing: How.
        position: Where to begin.
    """

    def __init__(self, readers: Sequence[Reader], dealing: Dealing, position: Position) -> None:
        self._readers = readers
        self._dealing = dealing
        self._position = position
        self._rest: deque[Sequence[Any]] = deque()
        self._digest: int | None = None

    def __next__(self) -> Round:
        if not self._rest:
            rounds, self._digest = self._dealing.rounds(self._readers)
            self._rest.extend(rounds[self._position.taken :])
        parts = self._rest.popleft()
        self._position = self._after()
        return Round(parts, self._position, self._digest)

    def _after(self) -> Position:
        if self._rest:
            return Position(self._position.states, self._position.taken + 1)
        return Position([reader.state_dict() for reader in self._readers])


class TransferredRounds(Iterator[Round]):
    """The rounds of `rounds`, each part on the device of its replica.

    Args:
        rounds: Rounds on the host.
        devices: One for each replica; None leaves the part where it is.
        aside: Copy beside the work that GPUs do, to be used while that goes on: this thread then
            waits until the copies are there.
    """

    def __init__(
        self, rounds: Iterator[Round], devices: Sequence[torch.device | None], aside: bool
    ) -> None:
        self._rounds = rounds
        self._devices = devices
        gpus = {device for device in devices if device and device.type == "cuda"}
        self._streams = [torch.cuda.Stream(gpu) for gpu in gpus if aside]

    def __next__(self) -> Round:
        round_ = next(self._rounds)
        with ExitStack() as streams:
            for stream in self._streams:
                streams.enter_context(torch.cuda.stream(stream))
            pairs = zip(round_.parts, self._devices, strict=True)
            parts = [_transferred(part, device) for part, device in pairs]
        for stream in self._streams:
            stream.synchronize()
        return replace(round_, parts=parts)


def _transferred(part: Any, device: torch.device | None) -> Any:
    return part if device is None else map_leaves(lambda x: _copied(x, device), part)


def _copied(leaf: Any, device: torch.device) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if device.type != "cuda" or leaf.is_cuda or leaf.layout is not torch.strided:
        return leaf.to(device)
    # Only from pinned memory can the GPU copy while the host goes on.
    return leaf.pin_memory().to(device, non_blocking=True)


def hand_over(round_: Round) -> None:
    """Let the work that this thread queues on GPUs use the tensors of a round.

    Without this the memory of a tensor that was copied aside could be given to the next one while
    queued work still reads it.
    """
    for leaf in leaves(list(round_.parts)):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            for part in _in_memory(leaf):
                part.record_stream(torch.cuda.current_stream(leaf.device))


def _in_memory(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the tensors that hold the values of `tensor`."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout is torch.jagged:
        # Declared by torch's private class of such tensors only.
        return tensor.values(), tensor.offsets()  # type: ignore[attr-defined]
    return (tensor,)

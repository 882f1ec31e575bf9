"""Collective operations between workers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from stratagem._multi_worker.links import Links
from stratagem._multi_worker.place import WorkerPlace
from stratagem._multi_worker.trust import require_trust
from stratagem_proto.errors import AbortedError, InvalidArgumentError

_DIGEST_BYTES = 32
_HASHED_ELEMENTS = 1 << 16
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WorkerGroup:
    """The workers that train together, as one of them sees them.

    All workers call the same methods in the same order. Each operation begins with an `exchange`,
    in which workers notice that they are at different operations. The first operation connects the
    workers; a worker that is alone never connects.

    Raises:
        FailedPreconditionError: They are on several machines, and nobody has said that these speak
            without certificates.
    """

    def __init__(self, place: WorkerPlace, timeout: float, facts: Any) -> None:
        require_trust(place)
        self.place = place
        self._timeout = timeout
        self._facts = facts
        self._links: Links | None = None
        self._written: dict[str, str] = {}

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.place.size

    def exchange(self, operation: str, details: Any) -> list[Any]:
        """Send details to all workers, and return those of each worker, by rank.

        This is cheap where the details of all workers are the same. JSON carries them. All workers
        must be at the same operation.

        Raises:
            AbortedError: Workers are at different operations.
            InvalidArgumentError: Since the last one they have written different values.
            UnavailableError: A worker has ended.
            DeadlineExceededError: A worker did not take part in time.
        """
        if self.size == 1:
            return [details]
        text = json.dumps([operation, details, self._written], default=str).encode()
        texts = [text] * self.size
        if not self._all_equal(hashlib.sha256(text).digest()):
            texts = self._joined_bytes(text)
        heard = [json.loads(text) for text in texts]
        self._require_same_operation([at for at, _, _ in heard])
        self._require_same_writes([written for _, _, written in heard])
        self._written = {}
        return [details for _, details, _ in heard]

    def note_write(self, name: str, value: torch.Tensor) -> None:
        """Have the next exchange check that all workers have written this by hand."""
        if self.size > 1:
            digest = f"{self._written.get(name, '')} {_digest(value)}"
            self._written[name] = hashlib.sha256(digest.encode()).hexdigest()

    def agree(self, what: str, details: Any, beside: Any = None) -> list[Any]:
        """Check that details are equal on all workers; return the `beside` of each, by rank.

        JSON carries both. Raises InvalidArgumentError, which shows the first difference.
        """
        heard = self.exchange(what, [details, beside])
        for rank, (other, _) in enumerate(heard):
            if other != heard[0][0]:
                mine, theirs = _first_difference(heard[0][0], other)
                raise InvalidArgumentError(
                    f"{what} differs between the workers: {self.place.tasks[0]} has {mine}, "
                    f"{self.place.tasks[rank]} has {theirs}; run the same program on all workers",
                    task=self.place.name,
                )
        return [beside for _, beside in heard]

    def sums(self, tensors: Sequence[torch.Tensor], pack_bytes: int = 0) -> list[torch.Tensor]:
        """Return the sum over workers of each tensor, the same bits on every worker.

        The workers have agreed on shapes and dtypes. About `pack_bytes` are sent together; 0 is no
        bound.
        """
        if self.size == 1:
            return list(tensors)
        return self._connected().sums(tensors, pack_bytes)

    def joined(self, tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Return the tensors of all workers, by rank, whose first dimensions are the lengths."""
        if self.size == 1:
            return [tensor]
        return self._connected().joined(tensor, lengths)

    def spread(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the chief's tensors, which have the shapes and dtypes of these."""
        if self.size == 1:
            return list(tensors)
        return self._connected().spread(tensors)

    def _all_equal(self, digest: bytes) -> bool:
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        links = self._connected()
        found = links.joined_on_host(mine, [_DIGEST_BYTES] * self.size)
        return all(torch.equal(mine, other) for other in found)

    def _joined_bytes(self, text: bytes) -> list[bytes]:
        links = self._connected()
        size = torch.tensor([len(text)])
        sizes = links.joined_on_host(size, [1] * self.size)
        lengths = [int(each) for each in sizes]
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        found = links.joined_on_host(mine, lengths)
        return [bytes(each.tolist()) for each in found]

    def _require_same_operation(self, operations: Sequence[str]) -> None:
        for rank, operation in enumerate(operations):
            if operation != operations[0]:
                raise AbortedError(
                    f"The workers are not at the same point of the program: {self.place.tasks[0]} "
                    f"is at {operations[0]}, {self.place.tasks[rank]} at {operation}; run the same "
                    "program on all workers, and what all take part in outside of conditions on "
                    "the worker",
                    task=self.place.name,
                )

    def _require_same_writes(self, by_rank: Sequence[dict[str, str]]) -> None:
        for rank, written in enumerate(by_rank):
            for name in by_rank[0].keys() | written.keys():
                mine, theirs = by_rank[0].get(name), written.get(name)
                if mine != theirs:
                    raise InvalidArgumentError(
                        f"{name!r} was written by hand, and not alike: {self.place.tasks[0]} has "
                        f"written {_shown(mine)}, {self.place.tasks[rank]} {_shown(theirs)}, so "
                        "that its copies have parted; write the same value on all workers, outside "
                        "of conditions on the worker",
                        task=self.place.name,
                    )

    def _connected(self) -> Links:
        if self._links is None:
            self._links = Links(self.place, self._timeout)
            self.agree("The configuration", self._facts)
        return self._links

    def leave(self) -> None:
        """Close the connections; workers that still need this one fail."""
        self._links = None

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkerGroup:
        """Return a group that is not connected yet."""
        return WorkerGroup(self.place, self._timeout, self._facts)


def _digest(value: torch.Tensor) -> str:
    """Return what differs where values do. Large values are added up, where they are."""
    flat = value.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    whole = flat.view(_INTEGERS[flat.element_size()])
    if whole.numel() > _HASHED_ELEMENTS:
        return str(int(whole.sum(dtype=torch.int64)))
    return hashlib.sha256(whole.cpu().numpy().tobytes()).hexdigest()


def _shown(digest: str | None) -> str:
    return "nothing" if digest is None else f"what has the digest {digest[:8]}"


def _first_difference(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the first elements in which two lists differ."""
    if not (isinstance(one, list) and isinstance(other, list)):
        return one, other
    pairs = zip_longest(one, other, fillvalue="nothing more")
    return next((pair for pair in pairs if pair[0] != pair[1]), (one, other))

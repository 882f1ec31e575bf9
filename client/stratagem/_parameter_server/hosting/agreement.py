"""What tasks set without an optimizer, in which they have to agree with the chief.

Which of the two comes first is open, and the chief may have trained on by the time that another
task looks. So what he has set is told by marks of the contents, which outlast the values
themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import torch

from stratagem._cluster.tasks import Membership
from stratagem._core.waiting import Awaited, Wait
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._ps_client.requests.checkpoints import announce_restored, list_restored
from stratagem_proto.errors import FailedPreconditionError

_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5
_MARK_BYTES = 16
_MOST_MARKS = 1000
"""In one announcement, which is a message's header."""

# Identities of checkpoints are none of these: they are paths, or JSON.
_SET = "values set:"
_FIRST = "the first of a program"


class Held(NamedTuple):
    """What a task that is not the chief has set.

    Attributes:
        what: What errors call it.
        mark: What tells its content and name.
        is_current: Says whether the servers have the same now.
    """

    what: str
    mark: str
    is_current: Callable[[], bool]


def mark_of(name: str, contents: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Return what tells named tensors from others, to a certainty that does."""
    found = blake2b(name.encode(), digest_size=_MARK_BYTES)
    for key, tensor in contents:
        found.update(f"\0{key} {tensor.dtype} {list(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


class Agreement:
    """Compares what this task has set with what the chief has."""

    def __init__(self, store: RemoteStore, membership: Membership) -> None:
        self._store = store
        self._membership = membership
        self._has_told = False
        self._agreed: Counter[str] = Counter()

    def tell(self, marks: Sequence[str]) -> None:
        """Let the others know what the chief has set, unless he is alone."""
        if not marks or not self._membership.has_others:
            return
        for start in range(0, len(marks), _MOST_MARKS):
            header = _SET if self._has_told else f"{_SET} {_FIRST}"
            identity = "\n".join([header, *marks[start : start + _MOST_MARKS]])
            self._store.servers.on_all(partial(announce_restored, identity))
            self._has_told = True

    def require(self, held: Sequence[Held], seconds: float) -> None:
        """Wait until the chief has set the same, unless the servers have it anyhow.

        Each time that he has set something answers for one time here.

        Raises:
            FailedPreconditionError: Something is not the same after so many seconds.
        """
        missing: Sequence[Held] = [one for one in self._untold(held) if not one.is_current()]
        if missing and seconds:
            member = self._membership
            whom = f"the chief, {member.creator_place}, to set {missing[0].what}"
            task, _, _ = member.creator_place.partition(" at ")
            awaited = Awaited.one_task(task, missing[0].what, "program")
            with Wait(member.name, whom, seconds, awaited):
                missing = self._awaited(missing, seconds)
        if missing:
            raise self._difference(missing[0].what, seconds)
        self._agreed.update(one.mark for one in held)

    def _awaited(self, held: Sequence[Held], seconds: float) -> Sequence[Held]:
        """Return those that the chief has not set in time."""
        give_up_at = time.monotonic() + seconds
        pause = _PAUSE_SECONDS
        while (held := self._untold(held)) and time.monotonic() < give_up_at:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return held

    def _untold(self, held: Sequence[Held]) -> Sequence[Held]:
        told = self._told() - self._agreed
        return [one for one in held if not told[one.mark]]

    def _told(self) -> Counter[str]:
        """Return how often the chief's present program has set what."""
        servers = self._store.servers
        found: Counter[str] = Counter()
        visible = next(iter(servers.called), servers.used[0])
        for identity in servers.call(visible, list_restored()).identities:
            header, *marks = identity.split("\n")
            if not header.startswith(_SET):
                continue
            if header.endswith(_FIRST):
                found.clear()
            found.update(marks)
        return found

    def _difference(self, what: str, seconds: float) -> FailedPreconditionError:
        member = self._membership
        waited = f" in {seconds:g} s" if seconds else ""
        return FailedPreconditionError(
            f"{what} was set in {member.name} to values that differ from those of the "
            f"servers, and the chief, {member.creator_place}, has not set it to the "
            f"same{waited}. The chief's values count: set the same in all tasks, for "
            "instance from the same file, or only in the chief, where "
            "strategy.extended.should_checkpoint is true",
            task=member.name,
        )

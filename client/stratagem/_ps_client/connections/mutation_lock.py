"""The right to change a server, which one request at a time has.

Ctrl-C may come between any two instructions, also between those that would take a lock
and see that it is given back. So the right is an object: who drops it gives it back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import get_ident

from stratagem._ps_client.transports.call import Cancellable


class Turn:
    """The right, until it is ended or dropped.

    Attributes:
        thread: Who has it; 0 while nobody has.
        call: What was sent by this right, and is given up with it.
    """

    def __init__(self, turns: MutationLock) -> None:
        self._turns: Callable[[], MutationLock | None] = weakref.ref(turns)
        self.thread = 0
        self.call: Cancellable | None = None

    def end(self) -> None:
        """Let the next one have it, once; nothing comes of one that is lost."""
        if (turns := self._turns()) is not None:
            self.call, self.thread = None, 0
            turns.free.put(self)

    def lose(self) -> None:
        """Give up what was sent, and have another right take the place of this one."""
        turns, self._turns = self._turns(), _gone
        call, self.call = self.call, None
        if call is not None:
            call.cancel()
        if turns is not None:
            turns.renew()

    def __del__(self) -> None:
        self.lose()


def _gone() -> None:
    """What becomes of the turns of one that is lost."""


class MutationLock:
    """Hands out the one turn that there is. Thread-safe.

    Attributes:
        free: The turn, while nobody has it.
        last: What holds the turn that there is weakly.
    """

    def __init__(self) -> None:
        self.free: SimpleQueue[Turn] = SimpleQueue()
        self.renew()

    def renew(self) -> None:
        """Make another turn, as nothing will come of the one that there was."""
        turn = Turn(self)
        self.last = weakref.ref(turn)
        self.free.put(turn)

    def take(self) -> Turn:
        """Wait for the turn, which the caller has from now on."""
        thread = get_ident()
        try:
            turn = self.free.get_nowait()
        except Empty:
            turn = self._awaited()
        turn.thread = thread
        return turn

    def _awaited(self) -> Turn:
        self.release_interrupted()
        return self.free.get()

    def release_interrupted(self) -> None:
        """Have the caller lose the turn that they still have, if they have.

        They were interrupted in it: for as long as they handle that, or keep the
        exception, the traceback keeps the turn.
        """
        last = self.last()
        if last is not None and last.thread == get_ident():
            last.lose()

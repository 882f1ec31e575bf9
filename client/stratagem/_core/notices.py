"""What a training program learns of its own end before it comes."""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

from typing_extensions import Self

from stratagem_rpc.notices import ENVIRONMENT, notice_at, watched

Element = TypeVar("Element")

_LOG = logging.getLogger("stratagem")

# What supervisors and terminals send to a whole group of processes.
_SIGNALS = signal.SIGTERM, signal.SIGINT

# How long a process may hear of the end of a child before it is told itself.
_MOMENT_SECONDS = 1.0

_LOOK_SECONDS = 0.5


class Notice:
    """Tells a loop that this process is about to be stopped, so that it ends with a whole step.

        with stratagem.Notice() as notice:
            for batch in notice.until(loader):
                strategy.run(step, args=(batch,))
        strategy.save(folder)

    In the block, the first SIGTERM or SIGINT (Ctrl-C) sets `given` and does not end the process; a
    second one does what it did before. Signals are caught only if the main thread enters the block.
    Where the whole group of processes gets them, processes that are forked in the block, such as
    the workers of a `DataLoader`, go on until the block ends, unless this process ends them or
    dies. The end of others, which were there before or are no forks, raises nothing in the midst of
    a step of `until`.

    Args:
        notice: What else to watch: "file:PATH" gives notice once the file exists,
            "kubernetes:NAMESPACE/POD" once the pod is marked for deletion. By default the value of
            the environment variable STRATAGEM_NOTICE, if it is set.

    Raises:
        InvalidArgumentError: There is no such kind of notice.
        FailedPreconditionError: There is no configuration of Kubernetes.
    """

    __module__ = "stratagem"

    def __init__(self, notice: str | None = None) -> None:
        address = os.environ.get(ENVIRONMENT, "") if notice is None else notice
        self._notice = notice_at(address) if address else None
        self._given = threading.Event()
        # What signals did before; None where they are not caught.
        self._before: dict[signal.Signals, Any] | None = None

    @property
    def given(self) -> bool:
        """Whether the process is to end."""
        return self._given.is_set()

    def until(self, elements: Iterable[Element]) -> Iterator[Element]:
        """Yield elements until the process is to end; what is done with the last one is finished.

        Args:
            elements: For instance a loader, or a range of steps.
        """
        iterator = iter(elements)
        while not self.given:
            try:
                element = next(iterator)
            except StopIteration:
                return
            except RuntimeError as error:
                if not self.given:
                    raise
                # Workers of a loader may have been told to end, too.
                _LOG.warning("no element comes after the notice: %s", error)
                return
            if self.given:
                return
            self._guard()
            yield element

    def __enter__(self) -> Self:
        with ExitStack() as block:
            block.enter_context(watched(self._notice, self._given.set))
            if threading.current_thread() is threading.main_thread():
                self._catch(block)
            self._block = block.pop_all()
        return self

    def _catch(self, block: ExitStack) -> None:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        children = block.enter_context(_Children(before))
        _holding.append(children)
        block.callback(_holding.remove, children)
        for number in _SIGNALS:
            signal.signal(number, self._take)
            block.callback(signal.signal, number, before[number])
        self._before = before
        self._guard()
        block.callback(self._guard, ends=True)

    def _guard(self, ends: bool = False) -> None:
        """Let the end of a child raise nothing once there is notice, or again what it did.

        A loader of torch sets its handler when it starts its first workers.
        """
        if self._before is None or threading.current_thread() is not threading.main_thread():
            return
        present = signal.getsignal(signal.SIGCHLD)
        if ends and isinstance(present, _IgnoringEnds):
            signal.signal(signal.SIGCHLD, present.handler)
        elif not ends and callable(present) and not isinstance(present, _IgnoringEnds):
            signal.signal(signal.SIGCHLD, _IgnoringEnds(present, self._given))

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self._given.set()
        # Whoever asks again does not want to wait.
        for number, handler in (self._before or {}).items():
            signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        self._block.close()


class _IgnoringEnds:
    """A handler of SIGCHLD that raises nothing once there is notice.

    That of torch raises an error if a worker of a loader has ended by a signal.
    """

    def __init__(
        self, handler: Callable[[int, FrameType | None], Any], given: threading.Event
    ) -> None:
        self.handler, self._given = handler, given

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        try:
            self.handler(signum, frame)
        except RuntimeError as error:
            # The child may have got the signal of all before this process has.
            if not self._given.wait(_MOMENT_SECONDS):
                raise
            _LOG.warning("a child process has ended with the notice: %s", error)


class _Children:
    """Holds back the signals of processes that are forked while it is entered.

    A signal mask is what no handler that a child installs takes the place of. A thread of the child
    takes what comes: a signal of its parent is meant for it, any other one for the whole group.

    Args:
        before: What the signals did before.
    """

    def __init__(self, before: dict[signal.Signals, Any]) -> None:
        self._before = before
        self._process = os.getpid()

    def __enter__(self) -> Self:
        # The end of the block and of the process close the pipe; memory says which of both it is.
        self._ended = mmap.mmap(-1, 1)
        self._reads, self._writes = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() == self._process:
            self._ended[0] = 1
            os.close(self._writes)
            os.close(self._reads)

    def hold(self) -> None:
        """Called in a child that has just been forked."""
        os.close(self._writes)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        threading.Thread(target=self._take, name="held-signals", daemon=True).start()

    def _take(self) -> None:
        held, is_meant = 0, False
        while not is_meant:
            is_over = bool(select.select([self._reads], [], [], 0)[0])
            came = signal.sigtimedwait(_SIGNALS, 0 if is_over else _LOOK_SECONDS)
            if came is not None:
                held, is_meant = came.si_signo, came.si_pid == os.getppid()
            if is_over:
                break
        # They come to this thread from now on, and do what they do in any process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        # Behind the block the parent ends its children itself; one that is dead does not.
        if held and (is_meant or not self._ended[0]):
            os.kill(os.getpid(), held)
        threading.Event().wait()


_holding: list[_Children] = []


def _forked() -> None:
    for children in _holding[:1]:
        children.hold()
    _holding.clear()


os.register_at_fork(after_in_child=_forked)

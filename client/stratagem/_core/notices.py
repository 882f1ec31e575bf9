"""What a training program learns of its own end before it comes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import TypeVar

from typing_extensions import Self

from stratagem_proto.notices.notice import ENVIRONMENT, notice_at
from stratagem_proto.notices.watch import watched

Element = TypeVar("Element")


class Notice:
    """Tells a loop that this process is about to be stopped, so that it ends with a whole step.

        with stratagem.Notice() as notice:
            for batch in notice.until(loader):
                strategy.run(step, args=(batch,))
        strategy.save(folder)

    In the block, the first SIGTERM sets `given` and does not end the process; a second one ends it.
    Signals are caught only if the main thread enters the block.

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

    @property
    def given(self) -> bool:
        """Whether the process is to end."""
        return self._given.is_set()

    def until(self, elements: Iterable[Element]) -> Iterator[Element]:
        """Yield elements until the process is to end; what is done with the last one is finished.

        Args:
            elements: For instance a loader, or a range of steps.
        """
        for element in elements:
            if self.given:
                return
            yield element
            if self.given:
                return

    def __enter__(self) -> Self:
        with ExitStack() as block:
            block.enter_context(watched(self._notice, self._given.set))
            if threading.current_thread() is threading.main_thread():
                before = signal.signal(signal.SIGTERM, self._take)
                block.callback(signal.signal, signal.SIGTERM, before)
            self._block = block.pop_all()
        return self

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self._given.set()
        # Whoever asks again does not want to wait.
        signal.signal(signum, signal.SIG_DFL)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._block.close()

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
    """Learns in a block that this process is to end, so that a loop ends with a whole step.

        with stratagem.Notice() as notice:
            for batch in notice.until(loader):
                strategy.run(step, args=(batch,))
        strategy.save(folder)

    In the block SIGTERM is such a notice, and does not end the process by itself; a second one
    does. So is the notice that is given here. Signals are heard where the block is entered in the
    main thread.

    Args:
        notice: Where it will stand that the process is to end: "file:PATH", once there is such a
            file, or "kubernetes:NAMESPACE/POD", once that pod is to be deleted. By default the
            environment variable STRATAGEM_NOTICE says; without it, nothing is looked for.

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

"""Workers that are interrupted in the midst of a synchronous step, and go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from stratagem.consistency import Sync
from stratagem_rpc.sockets.client import SocketLink
from tests.client.clusters import running
from tests.client.parameter_server.counter import Counter
from tests.client.parameter_server.pairs import Pair, pairs

pytestmark = pytest.mark.cluster

_CALLS = ("send", "send_at_once", "send_all", "receive")


class Interruption:
    """Interrupts a thread at its socket call of some number, counted from 0.

    Args:
        number: Which call; half of them are interrupted before, half after what is done, so that a
            request or its answer may be lost.
        thread: Which thread.
    """

    def __init__(self, number: int, thread: int) -> None:
        self._left, self._is_after = divmod(number, 2)
        self._thread = thread

    @property
    def came(self) -> bool:
        return self._left < 0

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Lets it come while the scope is open, and passes over it."""
        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            for name in _CALLS:
                patch.setattr(SocketLink, name, self._around(getattr(SocketLink, name)))
            yield

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(link: SocketLink, *args: Any, **kwargs: Any) -> Any:
            if self.came or threading.get_ident() != self._thread:
                return method(link, *args, **kwargs)
            self._left -= 1
            if not self.came:
                return method(link, *args, **kwargs)
            if self._is_after:
                method(link, *args, **kwargs)
            raise KeyboardInterrupt

        return call


def interrupted(step: Callable[[], object], thread: int | None = None) -> Iterator[None]:
    """Takes steps that are interrupted, each at its next point, up to a whole one."""
    for number in count():
        interruption = Interruption(number, thread or threading.get_ident())
        with interruption.pending():
            step()
        if not interruption.came:
            return
        yield


def test_a_lone_worker_goes_on_wherever_it_was_interrupted() -> None:
    with (
        running(num_servers=3) as cluster,
        cluster.strategy(consistency="sync") as strategy,
    ):
        counter = Counter(strategy)
        counter.add()
        taken = 1.0
        for _ in interrupted(counter.add):
            counter.add()
            sums = counter.sums()
            assert sums[0] == sums[1]
            assert sums[0] - taken in (1.0, 2.0)
            taken = sums[0]
    assert taken > 20


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_worker_of_two_is_part_of_each_step_once(clip_norm: float | None, is_last: bool) -> None:
    with running(num_servers=2, num_workers=2) as cluster, ExitStack() as stack:
        first, second = pairs(stack, cluster, clip_norm=clip_norm)
        first.run()
        second.run()
        each = first.values()
        if is_last:
            first.run()
        step = second.complete if is_last else second.run
        for taken, _ in enumerate(interrupted(step, thread_of(second)), 1):
            if not is_last:
                first.run()
                with suppress(KeyboardInterrupt):
                    # It may have come when the step counted already.
                    second.finish()
            if second.values() == multiple(each, taken):
                second.run()
            assert second.values() == multiple(each, taken + 1)
            assert first.values() == second.values()
            if is_last:
                first.run()


def test_with_spare_workers_an_interrupted_step_is_taken_wholly_or_not_at_all() -> None:
    with running(num_servers=2, num_workers=2) as cluster, ExitStack() as stack:
        first, second = pairs(stack, cluster, consistency=Sync(1))
        first.run()
        each, taken = first.values(), 1
        for _ in interrupted(second.complete, thread_of(second)):
            seen = second.values()
            is_counted = seen == multiple(each, taken + 1)
            taken += is_counted
            assert seen == multiple(each, taken)
            first.run()
            second.run()
            taken += 2
            assert first.values() == second.values() == multiple(each, taken)


def thread_of(worker: Pair) -> int:
    """The thread that takes a worker's steps."""
    return worker.thread.submit(threading.get_ident).result()


def multiple(each: Sequence[float], steps: int) -> object:
    """Values after some steps that are all the same, but for rounding."""
    return pytest.approx([steps * value for value in each], rel=1e-4)

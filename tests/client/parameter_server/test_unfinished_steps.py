"""Workers that end before all servers know the norm of a step's gradients."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stratagem import (
    AbortedError,
    DeadlineExceededError,
    ParameterServerStrategy,
    UnevenStepsError,
)
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.pending import Pending
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.transport import Style
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.pairs import Pair, after, pairs
from tests.conftest import TOKEN

pytestmark = pytest.mark.cluster


class Vanished(Exception):
    """A worker has ended."""


class Fate:
    """Ends a worker in place of a request: of some number, counted from 0, or of some method."""

    def __init__(self, worker: Pair, before: int | str) -> None:
        self.sent: list[str] = []
        self._before = before
        self._pending: list[Pending[Any]] = []
        patch = pytest.MonkeyPatch()
        extended = worker.strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        for connection in extended._store.servers._connections:
            start = partial(self._start, connection)
            patch.setattr(connection, "start", start)

    def _start(
        self, connection: Connection, request: Request[Any], style: Style = Style.SENT
    ) -> Pending[Any]:
        if self._before in (len(self.sent), request.method):
            for pending in self._pending:
                # What was sent has arrived.
                if pending._on_outcome is not None:
                    pending.result()
            raise Vanished
        # At once, also if its result is asked for next.
        pending = Connection.start(connection, request)
        self._pending.append(pending)
        self.sent.append(request.method)
        return pending


def vanish(worker: Pair, before: int | str) -> tuple[list[str], bool]:
    """Has a worker end in its step; returns what it had sent, and if that was all."""
    fate = Fate(worker, before)
    try:
        worker.complete()
    except Vanished:
        return fate.sent, False
    finally:
        worker.strategy.close()
    return fate.sent, True


def vanishings(
    check: Callable[[Cluster, Pair, list[str]], None],
    **settings: Any,
) -> list[str]:
    """Has the second worker end at each point of the second step.

    Args:
        check: Called with the cluster, the first worker, whose part of the step is there, and what
            the other has sent.
        settings: Of the optimizer.

    Returns:
        What a worker sends in a step.
    """
    for number in count():
        with (
            running(num_servers=2, num_workers=2) as cluster,
            ExitStack() as stack,
        ):
            first, second = pairs(stack, cluster, **settings)
            first.run()
            second.run()
            first.run()
            sent, whole = vanish(second, number)
            check(cluster, first, sent)
        if whole:
            return sent
    raise AssertionError("a step has an end")


def restarted(stack: ExitStack, cluster: Cluster, **settings: Any) -> Pair:
    return Pair(stack.enter_context(cluster.strategy(1, consistency="sync")), **settings)


def test_others_finish_what_a_worker_left_closed() -> None:
    two, three = after(2), [-1.8, -2.4]

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        closed = sent.count("CommitContribution") == 2
        if closed:
            assert first.values() == two
        else:
            with pytest.raises(AbortedError, match="start that task again"):
                first.values()
        with ExitStack() as stack:
            second = restarted(stack, cluster)
            if "CommitContribution" not in sent:
                second.run()
            second.run()
            first.run()
            assert first.values() == pytest.approx(three, rel=1e-5)
            assert second.values() == first.values()

    sent = vanishings(check)
    assert sent.count("FinishStep") == sent.count("ListClosedSteps") == 2


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_worker_that_is_started_again_finishes_its_step(clip_norm: float | None) -> None:
    two = after(2, clip_norm=clip_norm)

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        # It is told that the other one has left, and goes on when that is back.
        with suppress(UnevenStepsError):
            first.finish()
        with ExitStack() as stack:
            second = restarted(stack, cluster, clip_norm=clip_norm)
            # What one server was told to count is not repeated: its values are gone.
            completed = second.strategy.consistency_report()["SGD"].completed
            assert completed == (2 if "CommitContribution" in sent else 1)
            if completed == 1:
                second.run()
            assert second.values() == two
            assert first.values() == two

    vanishings(check, clip_norm=clip_norm)


def test_what_only_a_worker_that_ended_has_committed_is_not_taken_for_the_next_step() -> None:
    three = after(3)
    with running(num_servers=2, num_workers=2) as cluster, ExitStack() as stack:
        first, second = pairs(stack, cluster)
        first.run()
        second.run()
        second.run()
        second.strategy.close()
        again = restarted(stack, cluster)
        assert again.strategy.consistency_report()["SGD"].completed == 2
        with ThreadPoolExecutor(1) as pool:
            ran = pool.submit(again.run)
            first.run()
            first.run()
            ran.result(60.0)
        assert again.values() == first.values() == three


def test_a_snapshot_has_a_step_on_all_servers_or_on_none() -> None:
    two = after(2)

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        resolver = SimpleClusterResolver(cluster.spec, task_type="evaluator", task_id=0)
        with ParameterServerStrategy(resolver, token=TOKEN) as strategy:
            reader = Pair(strategy)
            closed = sent.count("CommitContribution") == 2
            # An evaluator changes nothing, and leaves it to the other worker to finish the step.
            finishing = first.thread.submit(first.values) if closed else None
            with strategy.snapshot():
                seen = reader.values()
        if finishing is not None:
            assert finishing.result(60.0) == two
        assert seen == (two if closed else pytest.approx([-0.6, -0.8], rel=1e-5))

    vanishings(check)


def test_an_evaluator_names_the_step_that_it_leaves_to_others_to_finish() -> None:
    with running(num_servers=2) as cluster, ExitStack() as stack:
        vanish(Pair(stack.enter_context(cluster.strategy(consistency="sync"))), "FinishStep")
        resolver = SimpleClusterResolver(cluster.spec, task_type="evaluator", task_id=0)
        impatient = ParameterServerStrategy(resolver, token=TOKEN, peer_seconds=0.1)
        reader = Pair(stack.enter_context(impatient))
        left = "step 1 of 'SGD' is not finished on all servers"
        with pytest.raises(DeadlineExceededError, match=left), impatient.snapshot():
            pass
        again = Pair(stack.enter_context(cluster.strategy(consistency="sync")))
        again.complete()
        with impatient.snapshot():
            assert reader.values() == again.values()


def test_a_checkpoint_has_what_a_worker_left_closed(tmp_path: Path) -> None:
    two = after(2)

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        if sent.count("CommitContribution") < 2:
            return
        folder = tmp_path / str(len(sent))
        first.strategy.save(folder)
        with (
            running(num_servers=2) as other,
            other.strategy(consistency="sync") as strategy,
        ):
            reader = Pair(strategy)
            strategy.restore(folder)
            assert reader.values() == two

    vanishings(check)

"""Real servers keep what docs/consistency.md promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from stratagem.consistency import Async, Bounded, Consistency, Sync
from tests.consistency.checker import Checker
from tests.consistency.remote import READS, trained
from tests.psserver.process import serving

pytestmark = pytest.mark.long

CHECKED_READS = 10_000  # at least, of each mode
SERVERS, WORKERS = 2, 3
STEPS = 1 + CHECKED_READS // (READS * SERVERS * WORKERS)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(serving(tmp_path_factory.mktemp("server"))).address
            for _ in range(SERVERS)
        ]


@pytest.mark.parametrize(
    ("consistency", "steps"),
    [
        (Async(), STEPS),
        (Bounded(1), STEPS),
        (Sync(), STEPS),
        # Workers that come too late leave steps out.
        (Sync(2), 20),
    ],
    ids=str,
)
def test_no_read_violates_a_property(
    servers: list[str], consistency: Consistency, steps: int
) -> None:
    history = trained(servers, consistency, WORKERS, steps)
    checker = Checker(history, WORKERS)
    assert not checker.violations()
    if steps == STEPS:
        assert checker.reads >= CHECKED_READS

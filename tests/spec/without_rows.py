"""Whether tests notice that what they are about is gone: `pytest --without-rows`.

Each test that carries rows is run once for each of them with the row's targets taken away, and has
to fail. See README.md. It runs in a fork, for what it leaves behind when half of the library is
gone would decide about later ones.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.spec.specification import Row, rows
from tests.spec.taking_away import owner_of, taken_away

SECONDS = 20  # for each pair of a test and a row; to hang is to fail

_ROW = pytest.StashKey[Row]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-rows",
        action="store_true",
        help="run tests of rows with what the row is about taken away; they must fail",
    )


def ids_of(item: pytest.Item) -> list[str]:
    """Return the ids of the rows that a test carries."""
    return [key for marker in item.iter_markers("spec") for key in marker.args]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replace each test by one for each of its rows."""
    if config.getoption("--without-rows"):
        items[:] = [
            without
            for item in items
            if isinstance(item, pytest.Function)
            for without in _without_each_row(item)
        ]
        # The first optimizer in each fork would load it, for more than a second.
        import_module("torch._dynamo")
        gc.freeze()  # else collecting garbage in a fork copies all memory


def _without_each_row(item: pytest.Function) -> Iterator[pytest.Function]:
    for key in sorted(set(ids_of(item))):
        row = rows().get(key)
        if row is not None and row.targets:
            yield _without(item, _checked(row))


def _checked(row: Row) -> Row:
    try:
        for target in row.targets:
            owner_of(target)
    except (ImportError, LookupError) as error:
        raise pytest.UsageError(f"the target of {row.id} is wrong: {error}") from error
    return row


def _without(item: pytest.Function, row: Row) -> pytest.Function:
    name = f"{item.originalname}-without-{row.id}"
    without: pytest.Function = type(item).from_parent(
        item.parent,
        name=name + item.name.removeprefix(item.originalname),
        callspec=getattr(item, "callspec", None),
        callobj=item.obj,
        fixtureinfo=item._fixtureinfo,
        originalname=name,
    )
    without.stash[_ROW] = row
    return without


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a test without its row's targets, and turn its outcome around."""
    row = item.stash.get(_ROW, None)
    if row is None:
        return None
    start = {"nodeid": item.nodeid, "location": item.location}
    item.ihook.pytest_runtest_logstart(**start)
    item.ihook.pytest_runtest_logreport(report=_report_of_fork(item, row))
    item.ihook.pytest_runtest_logfinish(**start)
    return True


def _report_of_fork(item: pytest.Item, row: Row) -> pytest.TestReport:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(item, row, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(SECONDS):
            report: pytest.TestReport = receiver.recv()
            return report
    except EOFError:  # it crashed
        pass
    finally:
        process.kill()
        process.join()
    return _report(item, row, noticed=True)


def _run(item: pytest.Item, row: Row, sender: Connection) -> None:
    _forget_the_controller(item.config.pluginmanager)
    with taken_away(row.targets):
        reports = runtestprotocol(item, log=False, nextitem=None)
    sender.send(_turned_around(item, reports, row))


def _forget_the_controller(plugins: pytest.PytestPluginManager) -> None:
    """Keep hooks from writing into the connection that pytest-xdist has."""
    for plugin in plugins.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugins.unregister(plugin)


def _turned_around(
    item: pytest.Item, reports: Sequence[pytest.TestReport], row: Row
) -> pytest.TestReport:
    """Return the one report that says whether a test has noticed."""
    report = next((each for each in reports if not each.passed), reports[-1])
    if report.skipped:
        return report
    return _report(item, row, noticed=report.failed and report.when != "teardown")


def _report(item: pytest.Item, row: Row, noticed: bool) -> pytest.TestReport:
    targets = " and ".join(row.targets)
    problem = f"passes although {targets}, the target of {row.id}, is taken away"
    verdict: dict[str, Any] = {"outcome": "passed", "longrepr": None}
    if not noticed:
        verdict = {"outcome": "failed", "longrepr": problem}
    return pytest.TestReport(item.nodeid, item.location, keywords={}, when="call", **verdict)

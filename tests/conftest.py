"""What tests of more than one folder need: servers and devices."""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator, Iterator

import pytest

from benchmarks.stores.server import s3_server
from stratagem import config
from stratagem_proto.memory import loading
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc import server_log

pytest_plugins = (
    "tests.crashes",
    "tests.full",
    "tests.longest_first",
    "tests.marked_files",
    "tests.spec.without_rows",
    "tests.plain_pushes",
    "tests.plain_servers",
    "tests.logged_servers",
)

TOKEN = "the cluster's secret"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the modules of tests from garbage collection; they live as long as the process."""
    with loading():
        return (yield)


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    """A parameter server in this process, on free ports, that expects TOKEN."""
    with ParameterServer(ServerSettings(token=TOKEN)) as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def collect_little() -> None:
    """Garbage is looked for among the objects of one file of tests only.

    A collection over all that torch loads takes 0.2 s.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Servers log to nothing that a test before has set up, and that may be closed."""
    log = logging.getLogger("stratagem_server")
    before, level = log.handlers[:], log.level
    server_log.OF_STRANGERS.refill()
    yield
    log.handlers[:] = before
    log.setLevel(level)


@pytest.fixture(autouse=True)
def one_cpu() -> Iterator[None]:
    """Only `CPU:0` at first, whatever the test before has configured."""
    yield
    config.set_logical_cpus(1)


@pytest.fixture
def two_cpus() -> None:
    """`CPU:0` and `CPU:1`."""
    config.set_logical_cpus(2)


@pytest.fixture
def four_cpus() -> None:
    """`CPU:0` to `CPU:3`."""
    config.set_logical_cpus(4)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket of an S3 server, if there is one."""
    for package in ("s3fs", "moto", "flask_cors"):
        pytest.importorskip(package, reason=f"{package} is not installed; see `make stores-test`")
    with s3_server() as url:
        yield url

"""Figures for Prometheus, and those that dashboards and alerts use."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.consistency_pb2 import GroupConsistency, WorkerClock
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse, ParameterServerStatus
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_reader.server import ReaderServer, ReaderServerSettings
from stratagem_reader.store_source import StoreSource
from stratagem_rpc.serving.metrics import families_of
from stratagem_rpc.serving.server import RpcServer
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, sgd, update_header

ROOT = Path(__file__).parents[3]
OBSERVABILITY = ROOT / "deploy" / "observability"
ANYWHERE = "127.0.0.1:0"


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ParameterServer, WorkerServer, ReaderServer]]:
    """A parameter server that has stepped a variable, and a worker and a reader server, idle."""
    ps_settings = ServerSettings(token=TOKEN, metrics_bind=ANYWHERE)
    worker_settings = WorkerSettings(token=TOKEN, metrics_bind=ANYWHERE)
    reader_settings = ReaderServerSettings(token=TOKEN, metrics_bind=ANYWHERE)
    with (
        ParameterServer(ps_settings) as server,
        WorkerServer(worker_settings) as worker,
        ReaderServer(reader_settings, StoreSource(tmp_path_factory.mktemp("none"))) as reader,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(weight=torch.ones(2, 3))
        client.update(sgd(), {"weight": torch.ones(2, 3)})
        client.read("weight")
        yield server, worker, reader


def scraped(server: RpcServer) -> dict[str, Metric]:
    with urlopen(f"http://{server.metrics_address}/metrics") as response:
        text = response.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    found = [
        each.value
        for family in families.values()
        for each in family.samples
        if each.name == sample and labels.items() <= each.labels.items()
    ]
    (only,) = found
    return only


def names(families: dict[str, Metric]) -> set[str]:
    """Names of the families as queries have them."""
    return {
        f"{name}_total" if family.type == "counter" else name
        for name, family in families.items()
        if name.startswith("stratagem_")
    }


def test_a_scrape_has_the_figures_of_pushes_and_pulls(
    servers: tuple[ParameterServer, WorkerServer, ReaderServer],
) -> None:
    found = scraped(servers[0])
    push, pull = {"method": "Update"}, {"method": "Read"}
    assert value(found, "stratagem_requests_total", code="OK", **push) == 1
    assert value(found, "stratagem_request_seconds_count", **pull) == 1
    assert 0 < value(found, "stratagem_request_seconds_sum", **push) < 60
    assert value(found, "stratagem_received_bytes_sum", **push) == 24
    assert value(found, "stratagem_sent_bytes_sum", **pull) == 24
    assert value(found, "stratagem_received_bytes_bucket", le="1024", **push) == 1
    assert value(found, "stratagem_received_bytes_bucket", le="+Inf", **push) == 1
    assert value(found, "stratagem_variable_bytes", kind="model", server="ps:0") == 24
    assert value(found, "process_resident_memory_bytes") > 0


def test_what_an_update_is_answered_with_counts_as_its_own() -> None:
    settings = ServerSettings(token=TOKEN, metrics_bind=ANYWHERE)
    with ParameterServer(settings) as server, RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(weight=torch.ones(2, 3))
        header = update_header(client.key(), sgd(), {"weight": torch.ones(2, 3)})
        header.then.selections.add(variable="weight")
        client.update_and_read(header, [torch.ones(2, 3)])
        found = scraped(server)
    assert value(found, "stratagem_sent_bytes_count", method="Update") == 1
    assert value(found, "stratagem_sent_bytes_sum", method="Update") == 24


def test_staleness_is_a_histogram_of_each_worker() -> None:
    clock = WorkerClock(task="/job:worker/task:1", finished=9, staleness=[5, 0, 2])
    group = GroupConsistency(group="Adam", workers=[clock])
    status = GetStatusResponse(
        task=Task(job="ps"), parameter_server=ParameterServerStatus(groups=[group])
    )
    found = {family.name: family for family in families_of(status)}
    of_worker = {"worker": "worker:1", "optimizer": "Adam"}
    buckets = {
        each.labels["le"]: each.value
        for each in found["stratagem_staleness_steps"].samples
        if of_worker.items() <= each.labels.items()
    }
    assert buckets == {"0": 5, "1": 5, "3": 7, "+Inf": 7}
    assert value(found, "stratagem_worker_steps_total", **of_worker) == 9


def test_servers_of_one_process_keep_their_figures_apart(
    servers: tuple[ParameterServer, WorkerServer, ReaderServer],
) -> None:
    found = scraped(servers[1])
    assert value(found, "stratagem_closures_queued", server="worker:0") == 0
    assert "stratagem_variables" not in found


def test_nobody_listens_for_prometheus_unless_told(server: ParameterServer) -> None:
    assert server.metrics_address == ""


def test_a_port_that_is_taken_is_named() -> None:
    with (
        contextlib.closing(ReservedAddress()) as free,
        ParameterServer(ServerSettings(token=TOKEN, metrics_bind=str(free))) as first,
    ):
        second = ParameterServer(ServerSettings(token=TOKEN, metrics_bind=first.metrics_address))
        with pytest.raises(UnavailableError, match=f"cannot listen on {free}"):
            second.start()


def test_the_page_explains_each_figure(
    servers: tuple[ParameterServer, WorkerServer, ReaderServer],
) -> None:
    page = (ROOT / "docs" / "observing.md").read_text()
    explained = set(re.findall(r"^\| `(stratagem_\w+)", page, re.MULTILINE))
    assert explained == set().union(*(names(scraped(server)) for server in servers))


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yml"])
def test_what_is_asked_of_prometheus_is_what_servers_tell(
    file: str, servers: tuple[ParameterServer, WorkerServer, ReaderServer]
) -> None:
    asked = set(re.findall(r"stratagem_\w+", (OBSERVABILITY / file).read_text()))
    known = set().union(*(names(scraped(server)) for server in servers))
    series = known | {f"{name}_{end}" for name in known for end in ("bucket", "sum")}
    assert asked
    assert asked - series == set()


def test_the_dashboard_shows_what_is_asked_of_a_training_cluster() -> None:
    dashboard = json.loads((OBSERVABILITY / "dashboard.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    for figure in (
        'request_seconds_bucket{server=~"$server", method="Update"}',
        'request_seconds_bucket{server=~"$server", method="Read"}',
        "staleness_steps_bucket",
        "wait_seconds_bucket",
        "waiting_requests",
        "dropped_contributions_total",
        "variable_bytes",
        "checkpoint_age_seconds",
        "table_found_rows_total",
        "table_lookups_total",
        "table_file_bytes",
    ):
        assert any(f"stratagem_{figure}" in query for query in queries), figure

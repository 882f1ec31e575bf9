"""The page that a server has by itself, over HTTP."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch

from stratagem_deploy.dashboard.pages import ServerPage
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.pages import PageMaker, ShownServer, offering
from stratagem_rpc.serving.server import RpcServer
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.certified import certified
from tests.conftest import TOKEN
from tests.deploy.dashboard.reader import Reader
from tests.deploy.processes.process_tree import python
from tests.psserver.wire import RawClient
from tests.waiting import eventually

ANYWHERE = "127.0.0.1:0"


@dataclass(frozen=True)
class Place:
    """Where the page of a server is."""

    url: str
    address: str


def signed_in(server: RpcServer) -> Reader:
    reader = Reader(Place(server.page_url, server.metrics_address))
    reader.sign_in()
    return reader


@contextmanager
def paged(
    settings: ServerSettings, make: PageMaker = ServerPage
) -> Iterator[tuple[ParameterServer, Reader]]:
    """A server with a page, and who has signed in there."""
    with offering(make), ParameterServer(settings) as server:
        yield server, signed_in(server)


def alone() -> ServerSettings:
    return ServerSettings(token=TOKEN, metrics_bind=ANYWHERE)


def names(reader: Reader) -> list[str]:
    return [node["name"] for node in reader.look()["view"]["picture"]["nodes"]]


def test_a_server_shows_itself_with_its_clients_and_variables() -> None:
    with (
        paged(alone()) as (server, reader),
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as client,
    ):
        client.open()
        client.create(weight=torch.ones(2, 3))
        eventually(lambda: names(reader) == ["ps:0", "worker:0"])
        facts = reader.look()
        assert facts["cluster"] == "ps:0"
        (row,) = facts["view"]["servers"]
        assert (row["server"], row["address"]) == ("ps:0", server.address)
        (variable,) = reader.facts("/variables")["variables"]
        assert (variable["name"], variable["shape"]) == ("weight", [2, 3])


@pytest.mark.parametrize("path", ["/", "/look", "/variables", "/app.js", "/metricsx", "/x/metrics"])
def test_all_but_figures_are_behind_the_token(path: str) -> None:
    with paged(alone()) as (server, _):
        stranger = Reader(Place(server.page_url, server.metrics_address))
        status, _, body = stranger.get(path)
        assert status == 401
        assert body == b"Open the address that this server has logged; it signs you in.\n"


def test_figures_are_where_prometheus_looks_for_them_whatever_the_host_is_called() -> None:
    with paged(alone()) as (server, _):
        stranger = Reader(Place(server.page_url, server.metrics_address))
        for path in ("/metrics", "/metrics/"):
            status, _, body = stranger.get(path, {"Host": "ps-0.cluster.example"})
            assert status == 200
            assert b'stratagem_uptime_seconds{server="ps:0"}' in body


def test_a_server_that_nobody_gives_a_page_has_figures_alone() -> None:
    with ParameterServer(alone()) as server:
        assert server.page_url == ""
        assert b"stratagem_uptime" in Reader(Place("", server.metrics_address)).get("/")[2]


def test_a_server_without_figures_has_no_page() -> None:
    with offering(ServerPage), ParameterServer(ServerSettings(token=TOKEN)) as server:
        assert server.page_url == ""


def test_a_worker_server_has_a_page() -> None:
    with (
        offering(ServerPage),
        WorkerServer(WorkerSettings(token=TOKEN, metrics_bind=ANYWHERE)) as worker,
    ):
        reader = signed_in(worker)
        assert names(reader) == ["worker:0"]
        assert reader.facts("/variables") == {"variables": []}


class Counted:
    """Makes pages that count how often they ask their server."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, server: ShownServer) -> ServerPage:
        def ask(with_variables: bool) -> GetStatusResponse:
            self.count += 1
            return server.ask(with_variables)

        return ServerPage(replace(server, ask=ask))


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[str]]:
    """Where two servers of `TF_CONFIG` are to be."""
    with ExitStack() as reserved:
        found = [str(reserved.enter_context(closing(ReservedAddress()))) for _ in range(2)]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"ps": found}}))
    yield found


def at(places: Sequence[str], task: int, metrics: str = "") -> ServerSettings:
    return ServerSettings(bind=places[task], task=task, token=TOKEN, metrics_bind=metrics)


def test_a_server_shows_its_cluster_and_who_of_it_does_not_answer(places: Sequence[str]) -> None:
    with paged(at(places, 0, ANYWHERE)) as (_, reader):
        eventually(lambda: reader.look()["view"]["summary"]["servers"] == "1 of 2")
        assert reader.look()["cluster"] == "the cluster of ps:0"
        with (
            ParameterServer(at(places, 1)) as other,
            RawClient(other.address, TOKEN, Task(job="worker", index=7)) as client,
        ):
            client.open()
            client.create(far=torch.ones(3))
            eventually(lambda: names(reader) == ["ps:0", "ps:1", "worker:7"])
            listed = reader.facts("/variables")["variables"]
            assert [each["place"] for each in listed] == ["ps:1"]
        eventually(lambda: reader.look()["view"]["summary"]["servers"] == "1 of 2")


def test_others_are_asked_only_once_somebody_looks(places: Sequence[str]) -> None:
    counted = Counted()
    with (
        offering(counted),
        ParameterServer(at(places, 1)) as other,
        ParameterServer(at(places, 0, ANYWHERE)) as server,
    ):

        def was_asked() -> bool:
            status = other._loop.run(other._status_service().status())
            return any(one.method == "GetStatus" for one in status.methods)

        eventually(lambda: counted.count >= 3)
        assert not was_asked()
        assert names(signed_in(server))[0] == "ps:0"
        eventually(was_asked)


@pytest.mark.full("others are asked only once somebody looks")
def test_clients_of_other_servers_have_not_come_because_somebody_looks(
    places: Sequence[str],
) -> None:
    with (
        ParameterServer(at(places, 1)) as other,
        RawClient(other.address, TOKEN, Task(job="worker", index=7)) as client,
    ):
        client.open()
        counted = Counted()
        with paged(at(places, 0, ANYWHERE), counted) as (_, reader):
            # Twice by itself, without the others.
            eventually(lambda: counted.count >= 2)
            eventually(lambda: "worker:7" in names(reader))
            before = reader.look()["number"]
            eventually(lambda: reader.look()["number"] > before)
            assert [each["what"] for each in reader.look()["events"]] == []


def test_a_server_that_is_stuck_says_so_on_its_page() -> None:
    turns = threading.Event()

    def impatient(server: ShownServer) -> ServerPage:
        def ask(with_variables: bool) -> GetStatusResponse:
            return running._loop.run(running._status_service().status(with_variables), 0.5)

        return ServerPage(replace(server, ask=ask))

    running = ParameterServer(alone())
    with offering(impatient), running:
        reader = signed_in(running)
        assert reader.look()["view"]["servers"][0]["problem"] == ""
        running._loop.call(turns.wait)
        try:
            eventually(lambda: "is stuck" in reader.look()["view"]["servers"][0]["problem"])
        finally:
            turns.set()
        eventually(lambda: reader.look()["view"]["servers"][0]["problem"] == "")


def test_a_cluster_that_cannot_be_read_leaves_the_server_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with paged(alone()) as (_, reader):
        assert names(reader) == ["ps:0"]


def test_a_page_with_certificates_is_for_those_who_are_certified_and_have_the_token(
    tmp_path: Path,
) -> None:
    authority = certified(tmp_path)
    folder, observer = authority.of("ps:0"), authority.of("observer")
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.check_hostname = False
    settings = ServerSettings(metrics_bind=ANYWHERE, tls=folder)
    with offering(ServerPage), ParameterServer(settings) as server:
        url = server.page_url
        assert url.startswith("https://")
        with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
            urlopen(url, context=context, timeout=60)
        context.load_cert_chain(observer / "tls.crt", observer / "tls.key")
        page = f"https://{server.metrics_address}/"
        with pytest.raises(URLError, match="401"):
            urlopen(page, context=context, timeout=60)
        with urlopen(url, context=context, timeout=60) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert "; Secure" in cookie
        known = Request(page, headers={"Cookie": cookie.partition(";")[0]})
        with urlopen(known, context=context, timeout=60) as answer:
            assert b"<title>Stratagem</title>" in answer.read()


@pytest.mark.full("the page's own server shows it in this process")
@pytest.mark.parametrize("kind", ["ps", pytest.param("worker", marks=pytest.mark.long)])
def test_the_command_logs_what_signs_in(kind: str, tmp_path: Path) -> None:
    ready, token = tmp_path / "ready", tmp_path / "token"
    token.write_text(TOKEN)
    files = ("--ready-file", str(ready), "--token-file", str(token))
    command = ("-m", "stratagem_deploy.cli", kind, *files, "--metrics-bind", ANYWHERE)
    with python(*command, output=subprocess.PIPE) as process:
        eventually(ready.exists)
        facts = json.loads(ready.read_text())
        reader = Reader(Place(facts["page_url"], facts["metrics_address"]))
        reader.sign_in()
        assert names(reader) == [f"{kind}:0"]
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        logged = [json.loads(line) for line in process.stderr]
    assert [line["url"] for line in logged if "url" in line] == [facts["page_url"]]

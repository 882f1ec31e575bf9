"""Server: a parameter server in the process that asks for it."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import stratagem
from stratagem import (
    ClusterSpec,
    ConfigProto,
    ParameterServerStrategy,
    Server,
    ServerDef,
    UnavailableError,
    Variable,
)
from stratagem._cluster.server import _serving
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.processes.process import import_path
from tests.conftest import TOKEN

CLUSTER = {"ps": ["127.0.0.1:0", "localhost:0"], "worker": ["w0.test:1"]}


def address_of(server: Server) -> str:
    return server.target.removeprefix("grpc://")


@pytest.mark.spec("SRV-1")
def test_a_server_keeps_the_variables_of_a_strategy() -> None:
    servers = [stratagem.Server(CLUSTER, "ps", task, token=TOKEN) for task in range(2)]
    spec = ClusterSpec({**CLUSTER, "ps": [address_of(server) for server in servers]})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    with ParameterServerStrategy(resolver, token=TOKEN) as strategy, strategy.scope():
        variables = [Variable(float(number)) for number in range(2)]
        variables[1].assign_add(2.0)
        assert [v.read_value().item() for v in variables] == [0.0, 3.0]
    for server in servers:
        server.stop()


@pytest.mark.spec("SRV-1")
@pytest.mark.parametrize(
    ("cluster", "job", "missing"),
    [
        (CLUSTER, None, "job_name"),
        (CLUSTER, "ps", "task_index"),
        ({}, None, "job_name"),
    ],
)
def test_the_task_is_given_where_it_is_not_the_only_one(
    cluster: dict[str, list[str]], job: str | None, missing: str
) -> None:
    with pytest.raises(ValueError, match=f"Must specify an explicit `{missing}`"):
        stratagem.Server(cluster, job)
    with pytest.raises(ValueError, match="explicit `job_name`"):
        stratagem.Server(ServerDef(cluster=ClusterSpec(CLUSTER).as_cluster_def()))
    with pytest.raises(TypeError, match="A cluster is a dict"):
        stratagem.Server("localhost:0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="No task with index 7"):
        stratagem.Server(CLUSTER, "ps", 7)


@pytest.mark.spec("SRV-1")
def test_a_server_tells_what_it_was_told() -> None:
    config = ConfigProto(device_filters=["/job:worker"])
    first = stratagem.Server({"ps": {3: "127.0.0.1:0"}}, config=config, start=False)
    told = first.server_def
    assert (told.job_name, told.task_index, told.protocol) == ("ps", 3, "grpc")
    assert told.default_session_config == config
    assert ClusterSpec(told.cluster) == {"ps": {3: "127.0.0.1:0"}}
    assert stratagem.Server(told, start=False).server_def == told
    told.cluster.CopyFrom(ClusterSpec(CLUSTER).as_cluster_def())
    other = stratagem.Server(told, task_index=1, start=False)
    assert (other.server_def.task_index, told.task_index) == (1, 3)


@pytest.mark.spec("SRV-1")
def test_a_server_starts_when_it_is_told_to() -> None:
    server = stratagem.Server.create_local_server(start=False)
    assert server.target == "grpc://localhost:0"
    server.stop()
    server.start()
    server.start()
    target = server.target
    assert target.startswith("grpc://localhost:") and target != "grpc://localhost:0"
    server.stop()
    server.stop()


@pytest.mark.spec("SRV-1")
def test_joining_lasts_until_the_server_has_stopped() -> None:
    server = stratagem.Server.create_local_server()
    with ThreadPoolExecutor(1) as threads:
        joined = threads.submit(server.join)
        assert not joined.done()
        server.stop()
        assert joined.result(timeout=30) is None


@pytest.mark.spec("SRV-1")
def test_only_parameter_servers_and_workers_exist() -> None:
    with pytest.raises(NotImplementedError, match="no server for /job:chief/task:0"):
        stratagem.Server({"chief": ["localhost:0"]}, token=TOKEN)
    with pytest.raises(NotImplementedError, match=r"'grpc\+verbs'"):
        stratagem.Server({"ps": ["localhost:0"]}, protocol="grpc+verbs")


@pytest.mark.spec("SRV-2")
def test_an_address_in_use_is_an_error() -> None:
    first = stratagem.Server.create_local_server()
    with pytest.raises(UnavailableError, match="the port is taken"):
        stratagem.Server({"ps": [address_of(first)]})
    first.stop()


@pytest.mark.spec("SRV-2")
def test_the_port_behind_a_forwarder_is_the_one_to_bind() -> None:
    first = stratagem.Server.create_local_server()
    port = int(first.target.rpartition(":")[2])
    behind = ServerDef(job_name="ps", port=port)
    behind.cluster.CopyFrom(ClusterSpec({"ps": ["localhost:1"]}).as_cluster_def())
    with pytest.raises(UnavailableError, match=f"localhost:{port}"):
        stratagem.Server(behind)
    first.stop()


def test_other_machines_reach_a_server_only_if_it_is_told_so() -> None:
    with pytest.raises(ValueError, match="not encrypted"):
        stratagem.Server({"ps": ["0.0.0.0:0"]}, token=TOKEN)


def test_a_program_ends_although_its_server_serves() -> None:
    program = "import stratagem; s = stratagem.Server.create_local_server()"
    subprocess.run(
        [sys.executable, "-c", program],
        env=import_path(),
        check=True,
        timeout=60,
    )


def test_a_server_that_nobody_keeps_serves_on() -> None:
    target = Server.create_local_server().target
    gc.collect()
    address = target.removeprefix("grpc://")
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
    (server,) = [one for one in _serving if one.target == target]
    server.stop(0)
    assert server not in _serving

"""KubernetesClusterResolver: pods that an API server lists over HTTP."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trustme

from stratagem import (
    ClusterSpec,
    DuplicateTaskError,
    FailedPreconditionError,
    ParameterServerStrategy,
    UnavailableError,
)
from stratagem.cluster_resolver import (
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
)
from tests.spec.cluster.kubernetes_api_server import ApiServer, serving

Build: TypeAlias = Callable[..., KubernetesClusterResolver]

OFF_CLUSTER = KubernetesExecutableLocation.OFF_CLUSTER


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with serving() as server:
        yield server


@pytest.fixture
def build(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """A resolver outside of the cluster, with the configuration of kubectl."""
    configuration = tmp_path / "kubeconfig"
    configuration.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{api.server_port}")))
    # KUBECONFIG is read when the library is imported.
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(configuration)
    )
    return partial(KubernetesClusterResolver, executable_location=OFF_CLUSTER)


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }


@pytest.mark.spec("RES-12")
def test_by_default_the_pods_of_one_job_are_the_workers(api: ApiServer, build: Build) -> None:
    api.add("tensorflow-xyz", job_name="tensorflow")
    api.add("tensorflow-abc", job_name="tensorflow", namespace="other")
    api.add("web", job_name="web")
    assert build().cluster_spec() == {"worker": ["10.0.0.2:8470", "10.0.0.1:8470"]}


@pytest.mark.spec("RES-12")
def test_each_job_has_the_pods_of_its_selectors_in_turn(api: ApiServer, build: Build) -> None:
    for name in ("w-b", "w-a", "v-a", "p-a"):
        api.add(name, app=name[0])
    resolver = build({"worker": ["app=w", "app=v"], "ps": ["app=p"]}, 2222)
    assert resolver.cluster_spec() == {
        "worker": ["10.0.0.2:2222", "10.0.0.1:2222", "10.0.0.3:2222"],
        "ps": ["10.0.0.4:2222"],
    }


@pytest.mark.spec("RES-12")
def test_the_pods_are_those_of_now(api: ApiServer, build: Build) -> None:
    resolver = build({"ps": ["app=ps"]})
    assert resolver.cluster_spec() == {"ps": []}
    api.add("ps-0", app="ps")
    assert resolver.cluster_spec() == {"ps": ["10.0.0.1:8470"]}


@pytest.mark.spec("RES-12")
def test_every_pod_has_to_run(api: ApiServer, build: Build) -> None:
    api.add("tensorflow-abc", job_name="tensorflow", phase="Pending")
    with pytest.raises(RuntimeError, match='"tensorflow-abc" is not running; phase: "Pending"'):
        build().cluster_spec()


@pytest.mark.spec("RES-12")
def test_the_location_is_one_of_two(build: Build) -> None:
    with pytest.raises(ValueError, match="executable location provided is invalid"):
        KubernetesClusterResolver(executable_location="here")  # type: ignore[arg-type]


@pytest.mark.spec("RES-12")
def test_a_client_can_be_given(api: ApiServer) -> None:
    from kubernetes.client import ApiClient, Configuration, CoreV1Api

    api.add("a", job_name="tensorflow")
    settings = Configuration(host=f"http://127.0.0.1:{api.server_port}")
    resolver = KubernetesClusterResolver(override_client=CoreV1Api(ApiClient(settings)))
    assert resolver.cluster_spec() == {"worker": ["10.0.0.1:8470"]}


@pytest.mark.spec("RES-12")
def test_the_library_of_kubernetes_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match=r"pip install 'stratagem\[kubernetes\]'"):
        KubernetesClusterResolver()


@pytest.mark.spec("RES-13")
def test_the_master_is_the_task_asked_for(api: ApiServer, build: Build) -> None:
    api.add("a", job_name="tensorflow")
    resolver = build()
    assert resolver.master() == ""
    assert (resolver.task_type, resolver.task_id) == (None, None)
    assert resolver.master("worker", 0) == "grpc://10.0.0.1:8470"
    assert resolver.master("worker", 0, "http") == "http://10.0.0.1:8470"
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.master() == "grpc://10.0.0.1:8470"
    resolver.rpc_layer = ""
    assert resolver.master() == "10.0.0.1:8470"


def test_pods_that_kubernetes_numbers_keep_their_numbers(api: ApiServer, build: Build) -> None:
    for index in (10, 9, 2):
        labels = {"app": "ps", "apps.kubernetes.io/pod-index": str(index)}
        api.add(f"ps-{index}", labels=labels)
    spec = build({"ps": ["app=ps"]}).cluster_spec()
    assert spec == {"ps": {2: "10.0.0.3:8470", 9: "10.0.0.2:8470", 10: "10.0.0.1:8470"}}


def test_the_pods_of_an_indexed_job_may_be_numbered_by_annotations(
    api: ApiServer, build: Build
) -> None:
    for name, index in (("w-x", 1), ("w-y", 0)):
        numbering = {"batch.kubernetes.io/job-completion-index": str(index)}
        api.add(name, app="w", annotations=numbering)
    spec = build({"worker": ["app=w"]}).cluster_spec()
    assert spec == {"worker": ["10.0.0.2:8470", "10.0.0.1:8470"]}


def test_two_pods_of_one_number_are_refused(api: ApiServer, build: Build) -> None:
    for name in ("a-0", "b-0"):
        api.add(name, labels={"app": "ps", "apps.kubernetes.io/pod-index": "0"})
    with pytest.raises(DuplicateTaskError, match="'a-0' and 'b-0' are both task 0"):
        build({"ps": ["app=ps"]}).cluster_spec()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("host", "10.0.0.1:8470"),
        ("pod", "10.1.0.1:8470"),
        ("dns", "ps-0.ps.training.svc:8470"),
    ],
)
def test_pods_are_reached_by_host_address_or_name(
    api: ApiServer, build: Build, address: str, expected: str
) -> None:
    api.add("ps-0", app="ps", namespace="training", subdomain="ps")
    spec = build({"ps": ["app=ps"]}, address=address).cluster_spec()
    assert spec == {"ps": [expected]}


def test_a_pod_without_a_service_has_no_name(api: ApiServer, build: Build) -> None:
    api.add("ps-0", app="ps")
    with pytest.raises(FailedPreconditionError, match=r"'ps-0' has no name in the DNS"):
        build({"ps": ["app=ps"]}, address="dns").cluster_spec()
    with pytest.raises(ValueError, match="one of host, pod, dns"):
        build(address="node")


def test_only_one_namespace_is_looked_at(api: ApiServer, build: Build) -> None:
    api.add("ps-0", app="ps", namespace="others")
    api.add("ps-0", app="ps", namespace="training")
    spec = build({"ps": ["app=ps"]}, namespace="training").cluster_spec()
    assert spec == {"ps": ["10.0.0.2:8470"]}


def test_a_process_finds_its_task_by_its_pod(api: ApiServer, build: Build) -> None:
    jobs = {"ps": ["app=ps"], "worker": ["app=worker"]}
    for name in ("ps-0", "worker-0", "worker-1"):
        api.add(name, app=name[:-2])
    resolver = build(jobs, pod_name="worker-1")
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    strategy = ParameterServerStrategy(resolver)
    assert strategy.extended.worker_devices[0].startswith("/job:worker/replica:0/task:1")
    assert not strategy.extended.should_checkpoint
    with pytest.raises(ValueError, match="'web-0' is in no job"):
        _ = build(jobs, pod_name="web-0").task_type


def test_a_refusal_of_the_api_server_says_what_is_missing(api: ApiServer, build: Build) -> None:
    api.token = "Bearer something else"
    with pytest.raises(UnavailableError, match=r"namespace 'n'.*403.*verb 'list'"):
        build(namespace="n").cluster_spec()


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Loaded late, since all that load tests would wait for it.
    from kubernetes.config import incluster_config

    authority = trustme.CA()
    security = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(security)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret")
    # Where every pod has these files is nowhere else.
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", tmp_path / "token")
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", tmp_path / "ca.crt")
    with serving("bearer secret", security) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.server_port))
        api.add("a", job_name="tensorflow")
        spec = KubernetesClusterResolver().cluster_spec()
    assert spec == ClusterSpec({"worker": ["10.0.0.1:8470"]})


def test_an_api_server_that_is_away_is_named(api: ApiServer, build: Build) -> None:
    resolver = build()
    api.shutdown()
    api.server_close()
    with pytest.raises(UnavailableError, match=f"port={api.server_port}"):
        resolver.cluster_spec()


def test_outside_of_a_pod_there_is_no_service_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(FailedPreconditionError, match="OFF_CLUSTER"):
        KubernetesClusterResolver()

"""Workers that join and leave as Kubernetes starts and ends their pods."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from stratagem import ParameterServerStrategy
from stratagem.cluster_resolver import KubernetesClusterResolver
from stratagem.coordinator import ClusterCoordinator
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.spec.cluster.kubernetes_api_server import ApiServer, serving
from tests.waiting import eventually

INDEX = "apps.kubernetes.io/pod-index"


class Pods:
    """Tasks that listen on one port, each on an address of its own.

    Attributes:
        api: Knows those that Kubernetes runs.
        port: On which they listen.
    """

    def __init__(self, api: ApiServer, stack: ExitStack) -> None:
        self.api = api
        self._stack = stack
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]

    def start(self, job: str, index: int) -> None:
        """Lets there be a pod, and a server in it."""
        host = f"127.0.0.{len(self.api.pods) + 2}"
        options: dict[str, Any] = {"task": index, "token": TOKEN}
        options["bind"] = f"{host}:{self.port}"
        if job == "worker":
            self._stack.enter_context(WorkerServer(WorkerSettings(**options)))
        elif job == "ps":
            self._stack.enter_context(ParameterServer(ServerSettings(**options)))
        labels = {"app": job, INDEX: str(index)}
        self.api.add(f"{job}-{index}", labels=labels)
        self.api.pods[-1]["status"]["hostIP"] = host

    def end(self, name: str) -> None:
        """Lets Kubernetes forget a pod."""
        pods = self.api.pods
        pods[:] = [pod for pod in pods if pod["metadata"]["name"] != name]

    def resolver(self) -> KubernetesClusterResolver:
        """The cluster as its chief sees it."""
        # Loaded late, since all that load tests would wait for it.
        from kubernetes.client import ApiClient, Configuration, CoreV1Api

        settings = Configuration(host=f"http://127.0.0.1:{self.api.server_port}")
        resolver = KubernetesClusterResolver(
            {job: [f"app={job}"] for job in ("chief", "ps", "worker")},
            self.port,
            override_client=CoreV1Api(ApiClient(settings)),
            pod_name="chief-0",
        )
        resolver.cluster_token = TOKEN
        return resolver


@pytest.fixture
def pods() -> Iterator[Pods]:
    with serving() as api, ExitStack() as stack:
        yield Pods(api, stack)


def test_workers_are_those_of_the_pods_that_run(pods: Pods) -> None:
    for job, index in ("chief", 0), ("ps", 0), ("worker", 0):
        pods.start(job, index)
    with ParameterServerStrategy(pods.resolver()) as strategy:
        coordinator = ClusterCoordinator(strategy, resolver_seconds=0.05)
        eventually(lambda: coordinator.workers == [0])
        pods.start("worker", 2)
        eventually(lambda: coordinator.workers == [0, 2])
        pods.end("worker-0")
        eventually(lambda: coordinator.workers == [2])
        devices = coordinator.schedule(lambda: strategy.extended.worker_devices)
        assert devices.fetch() == ("/job:worker/replica:0/task:2/device:CPU:0",)

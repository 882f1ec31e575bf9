"""Asking the API server of Kubernetes for pods."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from stratagem._cluster.pods import Pod
from stratagem_proto.errors import FailedPreconditionError, UnavailableError


class KubernetesExecutableLocation(enum.Enum):
    """Where the program runs, and so how it finds the API server."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesApi:
    """The API server, and how this process proves who it is.

    Args:
        location: In a pod, by its service account; outside of the cluster, by the file that
            `kubectl` uses.

    Raises:
        ImportError: The client library is not installed.
        FailedPreconditionError: There is no such configuration.
    """

    def __init__(self, location: KubernetesExecutableLocation) -> None:
        client, config = _libraries()
        settings = client.Configuration()
        within = location is KubernetesExecutableLocation.WITHIN_CLUSTER
        load = config.load_incluster_config if within else config.load_kube_config
        try:
            load(client_configuration=settings)
        except config.ConfigException as error:
            raise FailedPreconditionError(
                f"the configuration of Kubernetes cannot be read: {error}. Outside of "
                "a pod use KubernetesExecutableLocation.OFF_CLUSTER, which reads what "
                "KUBECONFIG names"
            ) from error
        self.pods = client.CoreV1Api(client.ApiClient(settings))


def list_pods(api: Any, selector: str, namespace: str | None) -> Sequence[Pod]:
    """Return the pods with certain labels.

    Args:
        api: A `CoreV1Api` of the client library.
        selector: Label selector, as in "job-name=tensorflow".
        namespace: Where to look; None for all namespaces.

    Raises:
        UnavailableError: The API server cannot be reached, or refuses.
    """
    try:
        if namespace is None:
            return list(api.list_pod_for_all_namespaces(label_selector=selector).items)
        return list(api.list_namespaced_pod(namespace, label_selector=selector).items)
    except _failures() as error:
        where = "all namespaces" if namespace is None else f"namespace {namespace!r}"
        raise UnavailableError(
            f"the API server of Kubernetes does not list the pods {selector!r} of "
            f"{where}: {_reason(error)}. The service account needs the verb 'list' for "
            "pods"
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    try:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError
    except ImportError:
        # Another client was given, with errors of its own.
        return ()
    return ApiException, HTTPError


def _reason(error: Any) -> str:
    # The text of an answer of the API has all of its headers.
    status = getattr(error, "status", None)
    return f"{status} {error.reason}" if status else str(error)


def _libraries() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ImportError(
            "The Kubernetes Python client must be installed before using the "
            "KubernetesClusterResolver: run `pip install 'stratagem[kubernetes]'`"
        ) from error
    return client, config

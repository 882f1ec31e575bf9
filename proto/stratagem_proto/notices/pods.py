"""The deletion of a pod of Kubernetes, as a notice to what runs in it."""

from __future__ import annotations

import os
from typing import Any

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)

_SECONDS = 1.0
_NOT_FOUND = 404


class PodDeletion:
    """The time of deletion in the description of a pod, which is there while the pod still runs.

    In a pod the configuration is that of its service account, which has to be allowed to `get` the
    pod; outside it is the file that `kubectl` uses.

    Args:
        address: "NAMESPACE/POD".

    Raises:
        InvalidArgumentError: That is no such address, or the package `kubernetes` is missing.
        FailedPreconditionError: There is no configuration of Kubernetes.
    """

    def __init__(self, address: str) -> None:
        self._namespace, _, self._pod = address.partition("/")
        if not self._namespace or not self._pod:
            raise InvalidArgumentError(
                f"kubernetes:{address} names no pod; give kubernetes:NAMESPACE/POD"
            )
        self.name = f"the deletion of the pod {address}"
        self._api = _api()

    def is_given(self) -> bool:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            found = self._api.read_namespaced_pod(
                self._pod, self._namespace, _request_timeout=_SECONDS
            )
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return True
            raise self._unknown(error.reason) from error
        except HTTPError as error:
            raise self._unknown(error) from error
        return found.metadata.deletion_timestamp is not None

    def _unknown(self, why: object) -> UnavailableError:
        return UnavailableError(
            f"the API server does not say whether the pod {self._namespace}/{self._pod} is to be "
            f"deleted: {why}. Let its service account get pods of that namespace"
        )


def _api() -> Any:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise InvalidArgumentError(
            "a notice of Kubernetes needs the package `kubernetes`; install it by "
            "pip install 'stratagem[kubernetes]'"
        ) from error
    settings = client.Configuration()
    try:
        _configure(settings, config)
    except config.ConfigException as error:
        raise FailedPreconditionError(
            f"a notice of Kubernetes finds no configuration: {error}. Run in a pod with a service "
            "account, or give KUBECONFIG"
        ) from error
    settings.retries = False
    return client.CoreV1Api(client.ApiClient(settings))


def _configure(settings: Any, config: Any) -> None:
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        # By its own default it is the file that the variable named when the library was loaded.
        file = os.environ.get("KUBECONFIG")
        config.load_kube_config(client_configuration=settings, config_file=file)

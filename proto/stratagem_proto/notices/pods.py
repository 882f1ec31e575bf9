"""The deletion of a pod of Kubernetes, as a notice to what runs in it."""

from __future__ import annotations

from typing import Any

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_proto.kubernetes_api import api_client

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
        connected = api_client("a notice of Kubernetes")
        from kubernetes.client import CoreV1Api

        self._api: Any = CoreV1Api(connected)

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

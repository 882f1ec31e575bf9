"""The views of tasks as Leases of Kubernetes."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from stratagem_proto.errors import DataLossError, InvalidArgumentError, UnavailableError
from stratagem_proto.kubernetes_api import api_client
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiters.register import Deadline
from stratagem_psserver.replication.arbiters.views import text_of, view_of
from stratagem_psserver.settings import ServerSettings

# As the client of Kubernetes gives it; its classes have no types.
Lease: TypeAlias = Any

_ANNOTATION = "stratagem/view"
_LABELS = {"app.kubernetes.io/part-of": "stratagem"}

_NAMES = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 401, 403, 404, 409


class LeaseRegister:
    """A Lease with the view of one task in an annotation.

    `kubectl get lease` shows the address of the primary as the holder, and the Lease counts epochs
    as transitions. It has no time after which it expires: replicas watch each other. The API server
    refuses a Lease that another replica has replaced meanwhile, by its `resourceVersion`.

    The configuration is that of the pod's service account; outside of a pod it is the file that
    `kubectl` uses.

    Args:
        address: "NAMESPACE/NAME"; the Lease of task 0 of job "ps" is then NAME-ps-0.
        settings: Those of a replica of the task.

    Raises:
        InvalidArgumentError: That is no such address, or the package `kubernetes` is missing.
        FailedPreconditionError: There is no configuration of Kubernetes.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        namespace, _, name = address.partition("/")
        lease = f"{name}-{settings.job}-{settings.task}"
        if not (name and _NAMES.fullmatch(namespace) and _NAMES.fullmatch(lease)) or (
            len(lease) > _LONGEST_NAME
        ):
            raise InvalidArgumentError(
                f"--arbiter kubernetes:{address} names no Lease of {settings.label}; give "
                "kubernetes:NAMESPACE/NAME, with a job and names of small letters, digits and -"
            )
        self._namespace, self._lease = namespace, lease
        self.name = f"the Lease {lease!r} in namespace {namespace!r} of Kubernetes"
        connected = api_client("--arbiter kubernetes:")
        self._client, self._failures = _library()
        self._api = self._client.CoordinationV1Api(connected)

    def read(self, deadline: Deadline) -> View | None:
        """Return the view of the Lease; None if there is no Lease.

        Raises:
            UnavailableError: The API server cannot be reached, or refuses.
            DataLossError: The Lease has no view.
        """
        lease = self._read(deadline)
        return self._view(lease) if lease is not None else None

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        """Replace the view if it is `present`; return whether it was.

        Raises:
            UnavailableError: The API server cannot be reached, or refuses.
            DataLossError: The Lease has no view.
        """
        lease = self._read(deadline)
        if lease is None:
            return present is None and self._create(following, deadline)
        if self._view(lease) != present:
            return False
        return self._update(lease, following, deadline)

    def close(self) -> None:
        """Close the connections."""
        self._api.api_client.close()

    def _read(self, deadline: Deadline) -> Lease | None:
        try:
            return self._api.read_namespaced_lease(
                self._lease, self._namespace, _request_timeout=deadline.left
            )
        except self._failures as error:
            if _status(error) == _NOT_FOUND:
                return None
            raise self._unavailable(error) from error

    def _view(self, lease: Lease) -> View:
        text = (lease.metadata.annotations or {}).get(_ANNOTATION)
        if text is None:
            raise DataLossError(
                f"{self.name} has no annotation {_ANNOTATION!r}: it is not a parameter server's. "
                "Give another NAME by --arbiter kubernetes:NAMESPACE/NAME"
            )
        return view_of(text, f"the annotation {_ANNOTATION!r} of {self.name}")

    def _create(self, view: View, deadline: Deadline) -> bool:
        metadata = self._client.V1ObjectMeta(name=self._lease, labels=_LABELS)
        lease = self._client.V1Lease(
            api_version="coordination.k8s.io/v1", kind="Lease", metadata=metadata
        )
        self._describe(lease, view)
        return self._write(
            self._api.create_namespaced_lease, self._namespace, lease, deadline=deadline
        )

    def _update(self, lease: Lease, view: View, deadline: Deadline) -> bool:
        self._describe(lease, view)
        return self._write(
            self._api.replace_namespaced_lease,
            *(self._lease, self._namespace, lease),
            deadline=deadline,
        )

    def _describe(self, lease: Lease, view: View) -> None:
        annotations = lease.metadata.annotations or {}
        lease.metadata.annotations = {**annotations, _ANNOTATION: text_of(view)}
        lease.spec = self._client.V1LeaseSpec(
            # An API server refuses an empty holder.
            holder_identity=view.primary.address or None,
            lease_transitions=view.epoch,
        )

    def _write(self, call: Any, *arguments: Any, deadline: Deadline) -> bool:
        try:
            call(*arguments, _request_timeout=deadline.left)
        except self._failures as error:
            # A Lease that is to be replaced may have been removed; a namespace is never made.
            is_gone = _status(error) == _NOT_FOUND and call != self._api.create_namespaced_lease
            if _status(error) == _CONFLICT or is_gone:
                return False
            raise self._unavailable(error) from error
        return True

    def _unavailable(self, error: Exception) -> UnavailableError:
        status = _status(error)
        reason = f"{status} {getattr(error, 'reason', '')}" if status else str(error)
        advice = {
            _UNAUTHORIZED: "See that the service account exists and that its token is mounted",
            _FORBIDDEN: "The service account needs the verbs get, create and update for leases of "
            "coordination.k8s.io there",
            _NOT_FOUND: "See that the namespace exists",
        }
        return UnavailableError(
            f"{self.name} cannot be used: {reason}. "
            + advice.get(status, "See that the API server runs and that this host reaches it")
        )


def _status(error: Exception) -> int:
    return int(getattr(error, "status", 0) or 0)


def _library() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the client of Kubernetes, and the errors that it raises."""
    from urllib3.exceptions import HTTPError

    from kubernetes import client

    return client, (client.ApiException, HTTPError)

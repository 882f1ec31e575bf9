"""The API of Kubernetes, with the configuration of the pod or of `kubectl`."""

from __future__ import annotations

import os
from typing import Any

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError


def api_client(purpose: str) -> Any:
    """Return a `kubernetes.client.ApiClient` that does not repeat requests.

    In a pod the configuration is that of its service account; outside it is the file that `kubectl`
    uses.

    Args:
        purpose: What needs it, for messages; for instance "--arbiter kubernetes:".

    Raises:
        InvalidArgumentError: The package `kubernetes` is missing.
        FailedPreconditionError: There is no configuration.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise InvalidArgumentError(
            f"{purpose} needs the package kubernetes; run `pip install 'stratagem[kubernetes]'`"
        ) from error
    settings = client.Configuration()
    try:
        _configure(settings, config)
    except config.ConfigException as error:
        raise FailedPreconditionError(
            f"{purpose} finds no configuration of Kubernetes: {error}. In a pod, set "
            "automountServiceAccountToken; elsewhere, let KUBECONFIG name the file of kubectl"
        ) from error
    # It would repeat requests that may have had an effect.
    settings.retries = False
    return client.ApiClient(settings)


def _configure(settings: Any, config: Any) -> None:
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        # By its own default it is the file that the variable named when the library was loaded.
        file = os.environ.get("KUBECONFIG")
        config.load_kube_config(client_configuration=settings, config_file=file)

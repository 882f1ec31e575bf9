"""A host with what keeps the Leases of a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.harness.namespace import Namespace
from stratagem_deploy.processes.process import import_path
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiter import view_of
from tests.psserver.replication.arbiters.lease_server import LeaseServer, kubeconfig_for

PORT = 8080

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/"
_ASK = (
    "import json, sys, urllib.request as r; "
    "print(json.load(r.urlopen(sys.argv[1]))['metadata']['annotations']['stratagem/view'])"
)


class ControlPlane:
    """An API server on a host of its own.

    Args:
        address: The address that the host gets.
        namespace: That of the cluster.
        folder: For what it writes.
    """

    def __init__(self, address: str, namespace: str, folder: Path) -> None:
        self.host = Namespace()
        self._process: subprocess.Popen[bytes] | None = None
        self._namespace, self._log = namespace, folder / "control-plane"
        self._url = f"http://{address}:{PORT}"
        self.settings = folder / "kube"
        self.settings.mkdir()
        (self.settings / "config").write_text(kubeconfig_for(self._url))

    def start(self) -> None:
        """Answers from now on."""
        with self._log.open("wb") as log:
            # The tests are not installed.
            variables = [f"{name}={value}" for name, value in import_path().items()]
            command = (sys.executable, "-m", __name__, self._namespace)
            self._process = self.host.start("env", *variables, *command, output=log)

    def view(self, task: int) -> View:
        """The view of a task."""
        leases = _LEASES.format(self._namespace)
        url = f"{self._url}{leases}stratagem-ps-{task}"
        return view_of(self.host.enter(sys.executable, "-c", _ASK, url), url)

    def close(self) -> None:
        self.host.close()
        if self._process is not None:
            self._process.wait()


if __name__ == "__main__":
    with LeaseServer(namespace=sys.argv[1], address=("0.0.0.0", PORT)) as server:
        server.serve_forever()

"""A small API server of Kubernetes that knows one pod."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATH = "/api/v1/namespaces/training/pods/worker-0"


class PodServer(ThreadingHTTPServer):
    """Answers what the pod is.

    Attributes:
        status: Of each answer.
        metadata: The pod's.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.metadata: dict[str, Any] = {"name": "worker-0", "namespace": "training"}

    def write_configuration(self, path: Path) -> None:
        """Writes the file by which clients find it."""
        server = f"http://127.0.0.1:{self.server_address[1]}"
        named = {"name": "here"}
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**named, "cluster": {"server": server}}],
            "users": [{**named, "user": {}}],
            "contexts": [{**named, "context": {"cluster": "here", "user": "here"}}],
            "current-context": "here",
        }
        path.write_text(json.dumps(configuration))


class _Handler(BaseHTTPRequestHandler):
    server: PodServer

    def do_GET(self) -> None:
        known = self.path == PATH
        status = self.server.status if known else 404
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": self.server.metadata}
        content = json.dumps(pod if status == 200 else {"kind": "Status"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def serving() -> Iterator[PodServer]:
    """Returns a server that answers as long as the block lasts."""
    with PodServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

"""The HTTP server of the page."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem_deploy.dashboard.access import Access
from stratagem_deploy.dashboard.site import Site
from stratagem_deploy.dashboard.watcher import Watcher
from stratagem_proto.certificates.presented import certificates_in
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.server_log import LOG
from stratagem_proto.serving.scrape_server import ScrapeServer
from stratagem_proto.serving.settings import check_address, is_loopback
from stratagem_proto.sockets.server.listener import cannot_listen

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import Certificates


class _Http(ScrapeServer):
    """Encrypts for browsers, which have no certificates of the cluster."""

    def context(self, shown: Certificates) -> ssl.SSLContext:
        from stratagem_proto.certificates.folder import page_context

        return page_context(shown)


class PageServer:
    """Serves the page of a cluster while it is open.

    Attributes:
        address: The "host:port" where it is.
        url: What signs a browser in.
    """

    def __init__(
        self, watcher: Watcher, bind: str, tls: Path | None = None, insecure: bool = False
    ) -> None:
        """Listen, and answer from now on.

        Args:
            watcher: Who looks at the cluster.
            bind: The "host:port" to listen on; port 0 takes a free one.
            tls: Folder with the certificate that the page shows; None to encrypt nothing.
            insecure: Whether other machines may connect although nothing is encrypted.

        Raises:
            ImportError: There are certificates, and the package cryptography is not installed.
            InvalidArgumentError: The address or a certificate is not valid, or other machines could
                reach the page unencrypted without `insecure`.
            UnavailableError: The port is taken, or the host is not this machine's.
        """
        check_address(bind)
        if not (is_loopback(bind) or tls or insecure):
            raise InvalidArgumentError(
                f"{bind} can be reached from other machines and the page is not encrypted; give "
                "--tls with a folder of certificates, bind to 127.0.0.1, or give --insecure if the "
                "network is trusted"
            )
        host, _, port = bind.rpartition(":")
        certificates = certificates_in(tls, LOG.warning) if tls else None
        try:
            self._server = _Http(host.strip("[]"), int(port), certificates)
        except OSError as error:
            raise cannot_listen(bind) from error
        access = Access(self._server.server_port, is_encrypted=tls is not None)
        self._server.set_app(Site(watcher, access, host, "`stratagem dashboard` has printed"))
        self.address = f"{host}:{self._server.server_port}"
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{self.address}/login?token={access.token}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dashboard", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""Asking a resolver again where parameter servers are."""

from __future__ import annotations

import logging

from stratagem.cluster_resolver import ClusterResolver

_LOG = logging.getLogger("stratagem")


class ServerLookup:
    """Says where parameter servers are now.

    Args:
        resolver: The resolver.
    """

    def __init__(self, resolver: ClusterResolver) -> None:
        self._resolver = resolver

    def __call__(self, index: int) -> str:
        """Return the "host:port" of a server; "" if the resolver does not say."""
        try:
            return self._resolver.cluster_spec().task_address("ps", index)
        except Exception as error:
            # Where nobody knows more, the server may come back to where it was.
            _LOG.debug("the resolver does not say where servers are: %s", error)
            return ""

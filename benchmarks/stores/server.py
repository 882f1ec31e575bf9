"""An S3 server in this process, for tests and measurements."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stratagem_storage.stores.object_calls import system_of

_KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3 on the loopback interface, for this process and those that it starts.

    Yields:
        The URL of an empty bucket.
    """
    import fsspec
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    # All servers of a process have the same buckets.
    bucket = f"bucket-{secrets.token_hex(4)}"
    try:
        host, port = server.get_host_and_port()
        with _environment({**_KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}):
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
            yield f"s3://{bucket}"
    finally:
        server.stop()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _forget()
    try:
        yield
    finally:
        _forget()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _forget() -> None:
    """Drop what has read another environment."""
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system_of.cache_clear()

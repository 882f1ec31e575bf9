"""TensorFlow's parameter server strategy: `python -m benchmarks.crashes.tensorflow`."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf

from benchmarks.crashes.trial import UPDATES, ServerProcess, found
from benchmarks.peers.tensorflow.cluster import free_addresses, serve

_START_SECONDS = 60.0


def main() -> None:
    """Add to a variable, kill the server, and tell what is there."""
    worker, ps = free_addresses(2)
    cluster: Mapping[str, Sequence[str]] = {"worker": [worker], "ps": [ps]}
    module, described = "benchmarks.crashes.tensorflow", json.dumps(cluster)
    servers = {job: ServerProcess(module, described, job) for job in cluster}
    try:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        with strategy.scope():
            count = tf.Variable(0.0)
        for _ in range(UPDATES):
            count.assign_add(1.0)
        servers["ps"].restart()
        _await_server(ps)
        found(lambda: count.assign_add(1.0), lambda: float(count.numpy())).tell()
    finally:
        for server in servers.values():
            server.end()


def _await_server(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), sys.argv[2], 0) if len(sys.argv) > 1 else main()

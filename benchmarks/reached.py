"""The goals that were reached, by measurement and name; `make bench-quick` keeps them.

What was reached on free cores by a tenth or more belongs here, and stays; nearer to a goal chance
would decide. Two minutes are too short for what was reached beside Ray, MXNet and TensorFlow's
coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

REACHED: Mapping[str, Collection[str]] = {
    "transfer": {
        "Stratagem, push + SGD 1 MB: of TensorFlow",
        "Stratagem, push + SGD 10 MB: of TensorFlow",
        "Stratagem, push + SGD 100 MB: of TensorFlow",
        "Stratagem, push + SGD 100 MB: of memcpy",
        "Stratagem, push + SGD 100 MB: of torch RPC",
        "Stratagem TCP, push + SGD 10 MB: of TCP socket",
        "Stratagem TCP, pull 10 MB: of TCP socket",
        "Stratagem, pull 1 MB: of TensorFlow",
        "Stratagem, pull 10 MB: of TensorFlow",
        "Stratagem, pull 1 MB: of torch RPC",
        "Stratagem, pull 100 MB: of TensorFlow",
        "Stratagem, pull 100 MB: of torch RPC",
    },
    "small-updates": {
        "Stratagem, round trip, median: of torch RPC plain",
        "Stratagem, round trip, 99th percentile: of round trip, median",
    },
    "lookups": {
        "Stratagem, pull, uniform: of gRPC unary",
        "Stratagem, pull, Zipf(1.05): of gRPC unary",
        "Stratagem, push + Adagrad, uniform: of gRPC unary",
        "Stratagem, push + Adagrad, Zipf(1.05): of gRPC unary",
    },
    "sessions": {"idle sessions, memory of the server, more by: of 100,000,000"},
    "startup": {"Stratagem, import, behind torch: of 0.15", "Stratagem, server ready: of 3"},
}

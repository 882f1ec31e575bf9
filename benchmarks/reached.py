"""The goals that were reached, by measurement and name; `make bench-quick` keeps them.

What was reached on free cores belongs here, and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

REACHED: Mapping[str, Collection[str]] = {
    "transfer": {
        "Stratagem, push + SGD 100 MB: of memcpy",
        "Stratagem, push + SGD 100 MB: of torch RPC",
        "Stratagem, pull 100 MB: of torch RPC",
    },
    "small-updates": {"Stratagem, round trip, 99th percentile: of round trip, median"},
    "lookups": {
        "Stratagem, pull, uniform: of gRPC unary",
        "Stratagem, pull, Zipf(1.05): of gRPC unary",
    },
    "sessions": {"idle sessions, memory of the server, more by: of 100,000,000"},
    "startup": {"Stratagem, import, behind torch: of 0.15"},
}

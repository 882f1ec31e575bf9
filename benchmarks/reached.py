"""The goals that were reached, by measurement and name; `make bench-quick` keeps them.

What was reached on free cores belongs here, and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

REACHED: Mapping[str, Collection[str]] = {
    "transfer": {
        "Stratagem TCP, push + SGD 10 MB: of TCP socket",
        "Stratagem TCP, pull 10 MB: of TCP socket",
        "Stratagem TCP, push + SGD 100 MB: of TCP socket",
        "Stratagem TCP, pull 100 MB: of TCP socket",
    },
    "lookups": {
        "Stratagem, pull, uniform: of gRPC unary",
        "Stratagem, pull, Zipf(1.05): of gRPC unary",
    },
    # What is kept with 4 workers need not be measured with 2 as well.
    "workers": {"4 workers, processors, a million examples: of 1 worker"},
    "sessions": {"idle sessions, memory of the server, more by: of 100,000,000"},
}

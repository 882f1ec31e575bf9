"""The least ratios that `make bench-quick` accepts, of goals that were reached.

By measurement and goal. They are below what was measured by more than its spread.
"""

from __future__ import annotations

from collections.abc import Mapping

FLOORS: Mapping[str, Mapping[str, float]] = {
    "transfer": {
        "Stratagem TCP, push + SGD 10 MB: of TCP socket": 0.35,
        "Stratagem TCP, pull 10 MB: of TCP socket": 0.4,
    },
    "lookups": {
        "Stratagem, pull, uniform: of gRPC unary": 0.3,
        "Stratagem, pull, Zipf(1.05): of gRPC unary": 0.3,
    },
    "workers": {
        "2 workers, processors, a million examples: of 1 worker": 0.85,
        "4 workers, processors, a million examples: of 1 worker": 0.85,
    },
    "sessions": {
        "idle sessions, memory of the server, more by: of 100,000,000": 3.0,
    },
}

"""The least ratios that `make bench-quick` accepts, of goals that were reached.

By measurement and goal. They are below what was measured by more than its spread.
"""

from __future__ import annotations

from collections.abc import Mapping

FLOORS: Mapping[str, Mapping[str, float]] = {}

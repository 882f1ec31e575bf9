"""Throughput over time, with the faults marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import matplotlib
import numpy as np
from matplotlib import figure

from benchmarks.chaos.faults import Fault

_COLORS = matplotlib.colormaps["tab20"].colors[2:]  # type: ignore[attr-defined]


def drawn(steps: Sequence[float], happened: Sequence[Fault]) -> figure.Figure:
    """Return a picture of the steps of each second.

    Args:
        steps: The moments of steps, in seconds.
        happened: What went wrong.
    """
    began = min([*steps, *(fault.moment for fault in happened)], default=0.0)
    picture = figure.Figure(figsize=(14, 5), layout="constrained")
    axes = picture.subplots()
    times = np.asarray(steps) - began
    axes.hist(times, bins=range(int(times.max(initial=0.0)) + 2), color="tab:blue", alpha=0.6)
    kinds = sorted(happened, key=lambda fault: fault.kind)
    for color, (kind, faults) in zip(_COLORS, groupby(kinds, lambda each: each.kind), strict=False):
        moments = [fault.moment - began for fault in faults]
        axes.vlines(moments, 0, 1, color, transform=axes.get_xaxis_transform(), lw=0.8, label=kind)
    axes.set(xlabel="seconds", ylabel="steps in a second", xlim=(0, None))
    if happened:
        picture.legend(loc="outside lower center", ncols=6, fontsize="small")
    return picture

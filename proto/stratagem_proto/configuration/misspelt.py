"""Environment variables whose names are nearly those of settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

# Those that are no settings of one kind of process.
_OTHERS = (
    "STRATAGEM_CHECKPOINT_KEY_FILE",
    "STRATAGEM_FOLD_TRACEBACKS",
    "STRATAGEM_INSECURE",
    "STRATAGEM_NOTICE",
    "STRATAGEM_REJOIN_SECONDS",
    "STRATAGEM_TLS",
    "STRATAGEM_TOKEN_FILE",
    "STRATAGEM_TRANSPORT",
)

# Settings of some commands that look like others, which a process of another kind may have.
_LIKE_OTHERS = (
    "STRATAGEM_FULL_TRACEBACKS",
    "STRATAGEM_GRACE",
    "STRATAGEM_REPLICA",
    "STRATAGEM_REPLICAS",
    "STRATAGEM_TRACES",
)

# Kubernetes sets variables of its own for a service called stratagem, and those of other commands
# may be set besides: they are less alike.
_ALIKE = 0.9


def misspelt(
    environment: Mapping[str, str], prefix: str, settings: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield each variable that nothing reads, and the one that was probably meant.

    Args:
        environment: The variables.
        prefix: What the names of settings begin with.
        settings: The variables of the process's own settings.
    """
    known = {*settings, *_OTHERS, *_LIKE_OTHERS}
    for name in sorted(environment):
        if name.startswith(prefix) and name not in known:
            meant = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
            yield from ((name, each) for each in meant)

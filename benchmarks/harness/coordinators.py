"""Coordinators as processes of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy.processes.process import Process, Transcript, import_path
from stratagem_proto.secret_files import TOKEN_FILE


def started(
    module: str,
    folder: Path,
    resolver: ClusterResolver,
    door: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Process:
    """Start `python -m MODULE FOLDER` as the chief of a cluster.

    Args:
        module: What it runs.
        folder: Its argument. The cluster's token is kept there, for this user only.
        resolver: The cluster as its chief sees it.
        door: What comes before the command.
        environment: What it finds in its environment besides.
    """
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(resolver.cluster_token or "")
    chief = {"cluster": resolver.cluster_spec().as_dict(), "task": {"type": "chief", "index": 0}}
    return Process(
        "chief:0",
        [*door, sys.executable, "-m", module, str(folder)],
        environment={
            **import_path(),
            **environment,
            "TF_CONFIG": json.dumps(chief),
            TOKEN_FILE.variable: str(token),
        },
        output=Transcript(),
    )
